"""What spark-submit runs: the jobs, with the options of `grouptrail run`.

    spark-submit ... deploy/spark/submit.py --job decode --once --config grouptrail.toml

README.md, beside this file, has the whole command.
"""

import sys

from grouptrail.cli import app

app(["run", *sys.argv[1:]], prog_name="grouptrail")
