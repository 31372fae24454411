"""Creates or drops a database on the server that `services up` names, and prints its URLs."""

import os
import subprocess
import sys
from urllib.parse import urlsplit

verb, name = sys.argv[1:]
owner, service = (urlsplit(os.environ[key]) for key in ("WAYBILL_OWNER_URL", "WAYBILL_DATABASE_URL"))
sql = f"create database {name}" if verb == "create" else f"drop database if exists {name} with (force)"
subprocess.run(["psql", owner._replace(path="/postgres").geturl(), "--quiet", "-v", "ON_ERROR_STOP=1", "-c", sql], check=True)
if verb == "create":
    print(f"export WAYBILL_OWNER_URL='{owner._replace(path='/' + name).geturl()}'")
    print(f"export WAYBILL_DATABASE_URL='{service._replace(path='/' + name).geturl()}'")
