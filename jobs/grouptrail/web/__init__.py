"""Web pages and JSON, served by the exporter's server on the port of /metrics.

    ClusterState (snapshot) --group_index--> GroupIndex --\
    tables --query, report--> group_page, topic_page     --+--answers--> application --> HTML, JSON
    tables --query/process--> sql_page                   --/

`pages` is what the runtime passes to the exporter; the rest is imported with the first request. `answers` defines
what each page knows, as the models that also describe the JSON; `templates/` and `drawing` show it.
"""
