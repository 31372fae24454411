"""Everything that a user writes."""

from __future__ import annotations

import os

from pydantic import BaseModel

from waybill import Approval, Profile, Waybill, Worker, tool


class Weather(BaseModel):
    city: str
    celsius: float


SENT: list[tuple[str, str]] = []


@tool(effect="pure", timeout=10)
async def weather(city: str) -> Weather:
    """The weather of a city, now."""
    return Weather(city=city, celsius=21.5)


@tool(effect="once", approval=Approval.ALWAYS)
def send_mail(to: str, text: str, *, call) -> str:
    """Sends a mail.

    Args:
        to: Whom to send it to.
        text: What it says.
    """
    SENT.append((call.idempotency_key, text))
    return f"sent to {to}"


reporter = Profile(
    "reporter", model="openai_chat/gpt-5.2", tools=[weather, send_mail], prompt="You report the weather in one sentence.", limits={"steps": 12}
)
SCRIPT = [
    {"call": {"weather": {"city": "Lyon"}}},
    {"call": {"send_mail": {"to": "you", "text": "It is {{result}}"}}},
    {"call": {"submit_result": {"city": "Lyon", "celsius": 21.5}}},
]


def serve(wb: Waybill) -> None:
    Worker(wb, tools=[weather, send_mail], at_once=16).run()


def ask(wb: Waybill) -> None:
    turn = wb.run("reporter", "How warm is it in Lyon?", result=Weather, labels={"user": "u-17"}, key="order-4711")
    for event in turn.watch(tokens=True, tree=True):  # goes on after a lost connection, and misses nothing but tokens
        match event.kind:
            case "token":
                print(event.text, end="")
            case "request" if event.request:  # a person is asked
                event.request.approve(note="fine") if event.request.tool == "send_mail" else event.request.reject()
    print(turn.result().celsius, turn.usage.microdollars)

    seen = turn.calls[-1].context()
    print(seen.request_hash, [(m.layer, m.n_tokens, [one.card_id for one in m.sources]) for m in seen.messages], seen.omitted)
    print(turn.calls[0].diff(turn.calls[-1]).cache_break)
    print(turn.calls[-1].lint())

    forks = turn.fork(turn.calls[0], profile_patch={"limits": {"steps": 11}}, n=2)
    print(wb.compare(turn, *[fork.wait() for fork in forks]).table())


if __name__ == "__main__":
    serve(Waybill()) if os.environ.get("SERVE") else ask(Waybill())
