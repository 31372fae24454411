"""What LangGraph stores, and how long a step takes, for one long turn. Prints one JSON object.

usage: langgraph_storage.py STEPS BASE_BYTES GROWTH_BYTES
needs: what requirements.txt names; DATABASE_URL of a throw-away server, on which the database `peer_langgraph` is made anew
"""
import json, os, random, sys, time
from typing import Annotated, TypedDict
import psycopg
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

steps, base, growth = (int(a) for a in sys.argv[1:4])
server = os.environ["DATABASE_URL"]
target = server.rsplit("/", 1)[0] + "/peer_langgraph"
with psycopg.connect(server, autocommit=True) as c:
    c.execute("drop database if exists peer_langgraph")
    c.execute("create database peer_langgraph")


def text(seed, n):
    return "".join(random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz ", k=n))


class State(TypedDict):
    messages: Annotated[list, add_messages]
    n: int


def call(state):
    return {"messages": [AIMessage(content=text(state["n"], growth))], "n": state["n"] + 1}


graph = StateGraph(State)
graph.add_node("call", call)
graph.add_edge(START, "call")
graph.add_conditional_edges("call", lambda s: "call" if s["n"] < steps else END)
with PostgresSaver.from_conn_string(target) as saver:
    saver.setup()
    app = graph.compile(checkpointer=saver)
    history = [HumanMessage(content=text(-i, base // 50)) for i in range(1, 51)]
    begun = time.perf_counter()
    app.invoke(
        {"messages": history, "n": 0},
        {"configurable": {"thread_id": "t"}, "recursion_limit": steps + 10},
        durability="sync",
    )
    seconds = time.perf_counter() - begun
with psycopg.connect(target, autocommit=True) as c:
    c.execute("vacuum")
    stored = c.execute(
        "select sum(pg_total_relation_size(oid)) from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace"
    ).fetchone()[0]
new = base + steps * growth
print(json.dumps({"peer": "langgraph", "steps": steps, "bytes_stored": int(stored), "bytes_new": new,
                  "ratio": round(int(stored) / new, 2), "ms_per_step": round(1000 * seconds / steps, 2)}))
