#!/usr/bin/env python3
"""An MCP server with the official Python SDK (`pip install mcp`): over stdio, or with --port over streamable HTTP.

A call carries a key of Waybill's own, the same however often it is made: what was done for a key is not done again.
"""

import argparse

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("ledger")
booked: dict[str, int] = {}


@server.tool()
def book(amount: int, context: Context) -> dict:
    """Books an amount, once for each call, and says how much is booked in all."""
    meta = context.request_context.meta or {}
    key = dict(meta).get("waybill/idempotency_key") or f"nobody-{len(booked)}"
    booked.setdefault(key, amount)
    return {"booked": booked[key], "total": sum(booked.values()), "key": key}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, help="over HTTP, on this port of 127.0.0.1, instead of standard input and output")
    port = parser.parse_args().port
    server.run() if port is None else server.run("streamable-http", host="127.0.0.1", port=port)
