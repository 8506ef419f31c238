"""DAGs for Airflow 3: run all jobs every ten minutes, maintain and check the tables once a day.

The workers need `grouptrail` on their path and its configuration in GROUPTRAIL_CONFIG. On a Spark cluster, the
command of `read` is that of deploy/spark/yarn.sh with --once. Use these DAGs instead of a service that runs
continuously.
"""

from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

START = datetime(2026, 1, 1, tzinfo=UTC)

with DAG(
    "grouptrail_read",
    schedule="*/10 * * * *",
    start_date=START,
    catchup=False,
    max_active_runs=1,
    # A run resumes where the last one ended, so a late run makes up for all missed ones.
    default_args={"retries": 2, "retry_delay": timedelta(minutes=1), "execution_timeout": timedelta(hours=2)},
    tags=["kafka"],
):
    BashOperator(task_id="read", bash_command="grouptrail run --once")

with DAG(
    "grouptrail_keep",
    schedule="20 1 * * *",
    start_date=START,
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 1, "execution_timeout": timedelta(hours=4)},
    tags=["kafka"],
):
    maintain = BashOperator(task_id="maintain", bash_command="grouptrail maintain")
    check = BashOperator(task_id="check", bash_command="grouptrail check --since 1d")
    maintain >> check
