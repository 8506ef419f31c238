"""The HTTP server of metrics and pages: cheroot, with limits that keep slow clients from others' way (ADR 0031).

    clients --server--> Connections --one thread each--> Connection --> a WSGI application

It knows neither metrics nor settings: the exporter passes it an address, a TLS context and the application.
"""
