"""A support team: the first line looks an order up, a specialist refunds it, and a person agrees first. The README says how to run it."""

import os
import sys

from waybill import Approval, Call, Profile, ToolError, Turn, Waybill, tool

MODEL = os.environ.get("MODEL")
MAIL = "Hello, the teapot of order 1042 came with a broken lid. I would like my money back. Ada Lovelace, 12 Mill Lane"
CUSTOMER = {"name": "Ada Lovelace", "mail": "ada@example.org", "address": "12 Mill Lane", "card": "4242 4242"}
ORDERS = {"1042": {"item": "teapot", "euros": 38, "delivered": "3 days ago", "customer": CUSTOMER}}


@tool(effect="pure", trusted=True)
def look_up(order: str) -> dict:
    """Returns an order: what was bought, when it came, and who bought it."""
    if order not in ORDERS:
        raise ToolError(f"there is no order {order}: ask the customer for the number")
    return ORDERS[order]


@tool(effect="once", approval=Approval.EXTERNAL)  # a person is asked if anything from outside led to the call
def refund(order: str, euros: int, reason: str, *, call: Call) -> str:
    """Pays money back for an order."""
    return f"refunded {euros} EUR, payment {call.idempotency_key[-6:]}"


first_line = Profile(
    "first-line",
    model=MODEL or "demo/demo",
    tools=[look_up],
    internal_tools=["ask_expert"],
    delegates_to=["refunds"],
    prompt="You answer customers. Look the order up. About money, ask `refunds`: name the order, the item, the price and what is wrong, "
    "and nothing about the customer. Then write a short answer to the customer.",
)
refunds = Profile(
    "refunds",
    model=MODEL or "demo/demo",
    tools=[refund],
    description="Decides about refunds, and pays them.",
    prompt="You decide about refunds. What arrived broken is refunded in full: refund it, and say in one sentence what was done.",
)
if not MODEL:  # without a model, both follow a script
    case = "Order 1042, a teapot for 38 EUR, came 3 days ago with a broken lid. Refund it if that is due."
    first_line = first_line.scripted(
        [
            {"say": "Let me look at the order.", "call": {"look_up": {"order": "1042"}}},
            {"say": "This is for a specialist.", "call": {"ask_expert": {"expert_profile": "refunds", "question": case}}},
            {"say": "Dear Ada, we are sorry about the lid. {{summary}}"},
        ]
    )
    refunds = refunds.scripted(
        [
            {"say": "Broken on arrival.", "call": {"refund": {"order": "1042", "euros": 38, "reason": "broken on arrival"}}},
            {"needs": "refunded", "say": "You get 38 EUR back.", "or": {"say": "A colleague looks at your case and will write to you."}},
        ]
    )


def ask(request) -> None:
    print(f"`{request.profile}` wants to call `{request.tool}` with {request.arguments}.\n{request.question}")
    if input("Do you agree? [y/N] ") == "y":
        request.approve(note="The photo shows it.")
    else:
        request.reject(note="I want to see a photo first.")


def leave(request) -> None:
    print(f"A person is asked. In another terminal: waybill approve {request.id}", flush=True)


def answer(wb: Waybill, mail: str, decide=ask) -> Turn:
    """Lets the team answer a mail. `decide` gets what a person is asked."""
    wb.apply(first_line, refunds)
    with wb.worker([look_up, refund]):
        turn = wb.run(first_line, mail, external=True)  # the mail is from outside; so is all that follows from it
        for event in turn.watch(tree=True):
            if event.request:
                decide(event.request)
    return turn


def check(specialist: Turn):
    """Fails unless the specialist's model saw the case, and nothing about the customer. Returns what it saw."""
    seen = specialist.calls[-1].context()
    return seen.assert_saw("1042", "teapot", "38").assert_did_not_see(MAIL, *CUSTOMER.values())


if __name__ == "__main__":
    wb = Waybill()
    turn = answer(wb, MAIL, leave if "--inbox" in sys.argv else ask)
    first, specialist = turn.tree()
    print(f"\n{turn.story()}\n\nThe customer reads: {turn.result()}")
    print(f"\nWhat the model of `refunds` saw:\n{check(specialist)}\n\nNothing of the customer's {', '.join(CUSTOMER)} was in it. It was handed:")
    for part in specialist.handovers():
        print(f"  {part.arg_key or part.rule}, by `{part.source_profile}`")
    for request in wb.requests("decided"):
        if request.said.agent_turn_id == specialist.id:
            print(f"{request.tool}: {request.said.decided.decision} by {request.said.decided.by}: {request.said.decided.note or 'no note'}")
    print(f"Composed again from the record: {wb.replay(first, specialist)}")
