"""An HTTP tool, and a model that calls it once. Both answer immediately."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        print(self.headers.get("traceparent"), flush=True)
        self.answer(b'{"found": true}', "application/json")

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if any(message["role"] == "tool" for message in asked["messages"]):
            delta = {"content": "Fetched."}
        else:
            delta = {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "fetch", "arguments": "{}"}}]}
        chunks = [
            {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if "tool_calls" in delta else "stop"}]},
            {"choices": [], "usage": {"prompt_tokens": 40, "completion_tokens": 4}},
        ]
        lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks] + ["data: [DONE]\n\n"]
        self.answer("".join(lines).encode(), "text/event-stream")

    def log_message(self, *_) -> None:
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
