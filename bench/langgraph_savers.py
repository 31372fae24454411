"""What LangGraph's checkpoints cost: bytes stored and time per step, with WaybillSaver and with PostgresSaver, on one PostgreSQL.

A graph of one node appends a message of 2,000 bytes to 50 messages of 4,000 bytes, once for each call, and LangGraph stores each step before
the next (`durability="sync"`). All texts are noise, so that compression does not make them smaller. PostgresSaver runs plain, and with a
`DeltaChannel` for the messages. Bytes are those by which all tables and indexes grow, after a thread that was run before, and a vacuum. Of the
rounds, the median counts.

    python bench/langgraph_savers.py [--short] [--json] [--profile]

needs: pip install waybill-ai[langchain] langgraph-checkpoint-postgres psycopg[binary]; the variable WAYBILL_BINARY, or `waybill` on the path
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import sys
import time
import uuid
from collections import defaultdict
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, TypedDict

import psycopg
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

from waybill.langchain import WaybillSaver
from waybill.testing import Server
from waybill.wire import uuid7

HISTORY, TEXT = 4_000, 2_000
#: What we may store and take, as a part of what the better of theirs does.
BAR = 1.0


def noise(seed: int, n: int) -> str:
    return "".join(random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz ", k=n))


def fold(state: Any, writes: Any) -> Any:
    return reduce(add_messages, writes, state or [])


class Plain(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    n: int


class Delta(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(fold)]
    n: int


def run(saver: Any, state: type, calls: int) -> float:
    """Runs a thread, and returns the milliseconds of a step."""
    texts = [noise(n, TEXT) for n in range(calls)]
    graph = StateGraph(state)
    graph.add_node("call", lambda found: {"messages": [AIMessage(texts[found["n"]])], "n": found["n"] + 1})
    graph.add_edge(START, "call")
    graph.add_conditional_edges("call", lambda found: "call" if found["n"] < calls else END)
    app = graph.compile(checkpointer=saver)
    history = [HumanMessage(noise(-n, HISTORY)) for n in range(1, 51)]
    config = {"configurable": {"thread_id": str(uuid.uuid4())}, "recursion_limit": calls + 10}
    begun = time.perf_counter()
    found = app.invoke({"messages": history, "n": 0}, config, durability="sync")
    took = time.perf_counter() - begun
    assert len(found["messages"]) == 50 + calls
    assert len(app.get_state(config).values["messages"]) == 50 + calls
    return 1000 * took / calls


def stored(database: str) -> dict[str, int]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("vacuum")
        rows = connection.execute(
            "select n.nspname || '.' || c.relname, pg_total_relation_size(c.oid) from pg_class c join pg_namespace n on n.oid = c.relnamespace"
            " where c.relkind = 'r' and n.nspname not in ('pg_catalog', 'information_schema', 'pg_toast')"
        )
        return dict(rows.fetchall())


def busy(server: Server) -> dict[str, float]:
    """Returns the processor time, in milliseconds, of the server's processes by their names."""
    found: dict[str, float] = defaultdict(float)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, rest = stat.read_text().split("(", 1)[1].rsplit(")", 1)
        except OSError:
            continue
        fields = rest.split()
        if int(fields[3]) == server.process.pid or name == "postgres":
            found[name] += 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def profile(server: Server, saver: WaybillSaver, database: str) -> None:
    """Says where the bytes and the time of a step go."""
    calls, before, begun, own = 400, stored(database), busy(server), time.process_time()
    sent: list[float] = []
    write = saver.client.api.write_step

    def timed(*arguments: Any, **more: Any) -> Any:
        at = time.perf_counter()
        done = write(*arguments, **more)
        sent.append(1000 * (time.perf_counter() - at))
        return done

    saver.client.api.write_step = timed
    step = run(saver, Plain, calls)
    saver.client.api.write_step = write
    own, ended, after = 1000 * (time.process_time() - own), busy(server), stored(database)
    saver.put({"configurable": {"thread_id": "empty", "checkpoint_ns": ""}}, empty_checkpoint(), {}, {})
    held = saver._shared.thread("empty").held
    empty, commit = [], []
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("create table public.one (a text)")
        for _ in range(100):
            at = time.perf_counter()
            write(held.turn_id, {"fence": held.fence, "step_id": uuid7(), "cards": []})
            empty.append(1000 * (time.perf_counter() - at))
            at = time.perf_counter()
            connection.execute("insert into public.one values ('x')")
            commit.append(1000 * (time.perf_counter() - at))
        connection.execute("drop table public.one")
    print(
        f"of a step of {step:.1f} ms: requests {sum(sent) / calls:.1f} ms ({len(sent) / calls:.2f} of them, median {statistics.median(sent):.1f} ms)"
    )
    print(f"processor time: this process {own / calls:.1f} ms,", ", ".join(f"{name} {(ended[name] - begun[name]) / calls:.1f} ms" for name in ended))
    print(f"for comparison: a step without cards {statistics.median(empty):.1f} ms, one insert with its commit {statistics.median(commit):.1f} ms")
    tables = {table: (size - before.get(table, 0)) / calls for table, size in after.items()}
    print(*(f"{size:>7.0f} bytes per call in {table}" for table, size in sorted(tables.items(), key=lambda one: -one[1])[:5]), sep="\n")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--short", action="store_true", help="one round")
    arguments.add_argument("--json", action="store_true", help="one JSON object per line")
    arguments.add_argument("--profile", action="store_true", help="print where the bytes and the time of WaybillSaver go")
    options = arguments.parse_args()
    server = Server()
    fell = False
    try:
        settings = (server.folder / "data/waybill.toml").read_text()
        ours = re.findall(r'owner_url = "(.*)"', settings)[0]
        theirs = ours.rpartition("/")[0] + "/langgraph"
        with psycopg.connect(ours, autocommit=True) as connection:
            connection.execute("create database langgraph")
        took: dict[tuple[str, int], list[float]] = defaultdict(list)
        grown: dict[tuple[str, int], list[int]] = defaultdict(list)
        with WaybillSaver(server.project()) as waybill, PostgresSaver.from_conn_string(theirs) as postgres:
            postgres.setup()
            sides = [
                ("WaybillSaver", waybill, Plain, ours),
                ("PostgresSaver", postgres, Plain, theirs),
                ("with DeltaChannel", postgres, Delta, theirs),
            ]
            for _, saver, state, _ in sides:
                run(saver, state, 20)
            for _ in range(1 if options.short else 3):
                for calls in (100, 400):
                    for name, saver, state, database in sides:
                        before = stored(database)
                        took[name, calls].append(run(saver, state, calls))
                        after = stored(database)
                        grown[name, calls].append(sum(after.values()) - sum(before.values()))
            if options.profile:
                profile(server, waybill, ours)
        for what, unit, of in (("bytes stored ÷ bytes that are new", "ratio", grown), ("time per step", "ms", took)):
            for calls in (100, 400):
                new = 50 * HISTORY + calls * TEXT if unit == "ratio" else 1
                values = {name: statistics.median(of[name, calls]) / new for name, *_ in sides}
                mine, *others = values.values()
                most = BAR * min(others)
                for name, value in values.items():
                    is_ours = name == "WaybillSaver"
                    ok = not is_ours or mine <= most
                    fell |= not ok
                    bar = f"<= {most:.2f}" if is_ours else ""
                    said = {"figure": f"{calls} calls, {name}: {what}", "value": round(value, 2), "unit": unit, "bar": bar, "ok": ok}
                    print(
                        json.dumps(said) if options.json else f"{said['figure']:70} {said['value']:>8} {unit:6} {bar:12} {'' if ok else 'FELL SHORT'}"
                    )
    finally:
        server.remove()
    sys.exit(1 if fell else 0)


if __name__ == "__main__":
    main()
