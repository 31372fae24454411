"""Tests of an agent against recorded answers: no network, no key, the same result every time.

    waybill record --replay new -- pytest       # asks the provider for what is not recorded yet
    waybill record --replay strict -- pytest    # asks nothing; a request that has changed fails, and says where
"""

import os

import pytest
from agents import Agent, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)

PROMPT = os.environ.get("PROMPT", "You answer in one sentence. Look up each temperature.")
CELSIUS = {"Zürich": 21, "Oslo": 3, "Quito": 14}


@function_tool
def weather(city: str) -> str:
    """Returns the temperature in a city."""
    return f"{city}: {CELSIUS[city]} °C"


@pytest.fixture
def agent() -> Agent:
    return Agent(name="weather", model="gpt-5.2", instructions=PROMPT, tools=[weather])


@pytest.mark.parametrize("traveller", [f"traveller {n}" for n in range(1, 21)])
def test_the_warmest_city_is_named(agent: Agent, traveller: str) -> None:
    question = f"I am {traveller}. Which of Zürich, Oslo and Quito is warmest?"
    result = Runner.run_sync(agent, question)
    assert result.final_output.startswith("Zürich is warmest")
