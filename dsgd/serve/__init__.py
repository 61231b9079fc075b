"""Answers requests with what runs have trained: `main.py serve RUN...`.

options.py has the options, and serve_command.py does what they ask for; application.py is the ASGI
application, with its limits; inference_protocol.py and completions.py are the two interfaces, which clients
of others speak; versions.py has what is served, and loading.py its weights; replicas.py puts all that on a
Ray cluster. All but options.py and serve_command.py need FastAPI and uvicorn, the extra `serve`.

A request is answered once, by one version, which its answer names; what was accepted is answered before the
process ends.
"""
