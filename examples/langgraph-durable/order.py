"""An order that survives its process. Kill it at any point and start it again: it goes on from where it was.

    waybill dev                                  # in one terminal; it stays
    python order.py order-1                      # in another: it works, and then waits for a person
    python order.py order-1 --approve            # also on another machine, or days later
"""

import argparse
import time
from operator import add
from typing import Annotated, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

from waybill.langchain import ThreadTaken, WaybillSaver


class Order(TypedDict):
    items: list[str]
    weighed: Annotated[list[str], add]
    approved: bool


def take(order: Order) -> dict:
    return {"items": ["flour", "salt", "yeast"]}


def weigh(item: dict) -> dict:
    time.sleep(1)  # slow work, which is not done again once its result is stored
    print(f"weighed the {item['name']}", flush=True)
    return {"weighed": [f"{len(item['name'])} kg of {item['name']}"]}


def ask(order: Order) -> dict:
    return {"approved": interrupt(f"Buy {', '.join(order['weighed'])}?")}


builder = StateGraph(Order)
builder.add_node("take", take)
builder.add_node("weigh", weigh)
builder.add_node("ask", ask)
builder.add_edge(START, "take")
builder.add_conditional_edges("take", lambda order: [Send("weigh", {"name": name}) for name in order["items"]], ["weigh"])
builder.add_edge("weigh", "ask")
builder.add_edge("ask", END)

if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("thread")
    arguments.add_argument("--approve", action="store_true")
    options = arguments.parse_args()
    config = {"configurable": {"thread_id": options.thread}}
    with WaybillSaver() as saver:
        graph = builder.compile(checkpointer=saver)
        found = graph.get_state(config)
        try:
            if found.created_at is None:
                graph.invoke({"weighed": []}, config, durability="sync")
            elif found.interrupts and options.approve:
                graph.invoke(Command(resume=True), config, durability="sync")
            elif found.tasks and not found.interrupts:
                graph.invoke(None, config, durability="sync")
        except ThreadTaken as taken:
            raise SystemExit(f"another process works on it: {taken}") from None
        found = graph.get_state(config)
        print(found.interrupts[0].value if found.interrupts else found.values)
