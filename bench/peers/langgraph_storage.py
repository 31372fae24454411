"""What LangGraph stores, and how long a step takes, for one long turn. Prints one JSON object.

usage: langgraph_storage.py STEPS BASE_BYTES GROWTH_BYTES
needs: what requirements.txt names; DATABASE_URL of a throw-away server, on which the database `peer_langgraph` is made from scratch;
       MODEL_URL of a server that speaks OpenAI's chat completions, and decides by its answers how many steps there are.
DELTA=1 uses DeltaChannel, which stores writes instead of whole lists, and a snapshot every 100 updates.

The same work as Waybill's worker does: each step sends the whole conversation over HTTP, and appends a text and a small tool call with its
result. Model and tool are one node, so that there is one checkpoint for each step; an agent of LangGraph's own has two.
"""
import json, os, random, sys, time
from functools import reduce
from typing import Annotated, TypedDict
import httpx, psycopg
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

steps, base, growth = (int(a) for a in sys.argv[1:4])
server, model = os.environ["DATABASE_URL"], httpx.Client(base_url=os.environ["MODEL_URL"], timeout=60)
delta = os.environ.get("DELTA") == "1"
target = server.rsplit("/", 1)[0] + "/peer_langgraph"
with psycopg.connect(server, autocommit=True) as c:
    c.execute("drop database if exists peer_langgraph")
    c.execute("create database peer_langgraph")


def text(seed, n):
    return "".join(random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz ", k=n))


def fold(state, writes):
    return reduce(add_messages, writes, state or [])


class State(TypedDict):
    messages: Annotated[list, DeltaChannel(fold) if delta else add_messages]


def written(message):
    """The message as OpenAI takes it."""
    if isinstance(message, HumanMessage):
        return {"role": "user", "content": message.content}
    if isinstance(message, ToolMessage):
        return {"role": "tool", "content": message.content, "tool_call_id": message.tool_call_id}
    calls = [
        {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": json.dumps(call["args"])}}
        for call in message.tool_calls
    ]
    return {"role": "assistant", "content": message.content} | ({"tool_calls": calls} if calls else {})


def call(state):
    request = {"model": "m", "messages": [written(message) for message in state["messages"]]}
    answer = model.post("chat/completions", json=request).raise_for_status().json()["choices"][0]["message"]
    calls = [
        {"id": call["id"], "name": call["function"]["name"], "args": json.loads(call["function"]["arguments"])}
        for call in answer.get("tool_calls") or []
    ]
    results = [ToolMessage(content="{}", tool_call_id=call["id"]) for call in calls]
    return {"messages": [AIMessage(content=answer["content"] or "", tool_calls=calls), *results]}


def stored():
    with psycopg.connect(target, autocommit=True) as c:
        c.execute("vacuum")
        return int(c.execute(
            "select sum(pg_total_relation_size(oid)) from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace"
        ).fetchone()[0])


graph = StateGraph(State)
graph.add_node("call", call)
graph.add_edge(START, "call")
graph.add_conditional_edges("call", lambda state: "call" if isinstance(state["messages"][-1], ToolMessage) else END)
with PostgresSaver.from_conn_string(target) as saver:
    saver.setup()
    empty = stored()
    app = graph.compile(checkpointer=saver)

    def run(thread, messages):
        config = {"configurable": {"thread_id": thread}, "recursion_limit": steps + 10}
        return app.invoke({"messages": messages}, config, durability="sync")

    # As Waybill's side: by then connections are open, and every table has its first pages.
    run("before", [HumanMessage(content="Go on.")])
    history = [HumanMessage(content=text(-i, base // 50)) for i in range(1, 51)]
    begun = time.perf_counter()
    ended = run("long", history)
    seconds = time.perf_counter() - begun
asked = sum(isinstance(message, AIMessage) for message in ended["messages"])
assert asked == steps, f"{asked} calls instead of {steps}"
new = base + steps * growth
print(json.dumps({"peer": "langgraph with DeltaChannel" if delta else "langgraph", "steps": steps, "bytes_stored": stored() - empty,
                  "bytes_new": new, "ms_per_step": round(1000 * seconds / steps, 3)}))
