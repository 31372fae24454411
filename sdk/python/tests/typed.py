"""What a type checker makes of a program. It is not run: pyright reads it in strict mode."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from typing_extensions import assert_type

from waybill import AsyncTurn, AsyncWaybill, Tool, Turn, Waybill, tool


class Weather(BaseModel):
    celsius: float


@tool(effect="pure")
def weather(city: str) -> Weather:
    """The weather of a city."""
    return Weather(celsius=len(city))


def ask(wb: Waybill) -> None:
    turn = wb.run("reporter", "Lyon?", result=Weather)
    assert_type(turn, Turn[Weather])
    assert_type(turn.result().celsius, float)
    assert_type(turn.usage.microdollars, int)
    assert_type(turn.calls[0].context().messages[0].n_tokens, int)
    assert_type(wb.run("reporter", "Lyon?"), Turn[Any])
    assert_type(wb.session().run("reporter", "Lyon?", result=Weather).result(), Weather)
    assert_type(weather("Lyon"), Weather)
    known: Tool[..., Weather] = weather
    wb.worker([known])


async def ask_too(wb: AsyncWaybill) -> None:
    turn = await wb.run("reporter", "Lyon?", result=Weather)
    assert_type(turn, AsyncTurn[Weather])
    assert_type(await turn.result(), Weather)
    assert_type((await turn.calls())[0].step_id, str)
