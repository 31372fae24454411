"""Writes the model calls of a LangGraph checkpoint database as JSON lines that `waybill import` reads.

    python export.py checkpoints.sqlite >calls.jsonl
    python export.py postgresql://…     >calls.jsonl
"""

import json
import sys
from collections.abc import Iterator

from langchain_core.messages import AIMessage, BaseMessage, convert_to_openai_messages


def open_saver(where: str):
    """Opens the database as LangGraph itself does: checkpoints may hold objects that only it can read."""
    if where.startswith(("postgres://", "postgresql://")):
        from langgraph.checkpoint.postgres import PostgresSaver

        return PostgresSaver.from_conn_string(where)
    from langgraph.checkpoint.sqlite import SqliteSaver

    return SqliteSaver.from_conn_string(where)


def calls(saver) -> Iterator[dict]:
    """Each answer of a model is a call. Its request is all messages before it."""
    seen = set()
    for saved in sorted(saver.list(None), key=lambda saved: saved.checkpoint["ts"]):
        thread = saved.config["configurable"]["thread_id"]
        for name, messages in saved.checkpoint["channel_values"].items():
            if not isinstance(messages, list) or not all(isinstance(one, BaseMessage) for one in messages):
                continue
            for i, said in enumerate(messages):
                if isinstance(said, AIMessage) and i > 0 and (thread, name, said.id) not in seen:
                    seen.add((thread, name, said.id))
                    yield call(thread, saved.checkpoint["ts"], messages[:i], said)


def call(thread: str, at: str, before: list[BaseMessage], said: AIMessage) -> dict:
    usage = said.usage_metadata or {}
    model = said.response_metadata.get("model_name", "unknown")
    tokens = {
        "prompt_tokens": usage.get("input_tokens", 0),
        "completion_tokens": usage.get("output_tokens", 0),
        "prompt_tokens_details": {"cached_tokens": usage.get("input_token_details", {}).get("cache_read", 0)},
    }
    reason = "tool_calls" if said.tool_calls else "stop"
    choice = {"index": 0, "message": convert_to_openai_messages(said), "finish_reason": reason}
    return {
        "at": at,
        "session": thread,
        "agent": said.name or "langgraph",
        "format": "openai_chat",
        "request": {"model": model, "messages": convert_to_openai_messages(before)},
        "answer": {"model": model, "choices": [choice], "usage": tokens},
    }


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open_saver(sys.argv[1]) as saver:
        for one in calls(saver):
            print(json.dumps(one, ensure_ascii=False))
