"""Runs one small agent of a framework and prints one JSON line: what it said, what it called, and how often it asked the model.

    setups.py NAME     # run one
    setups.py --list   # print all names
    setups.py --serve  # run those that come as lines on stdin, {"name", "environment"}, each in a process of its own

Each agent gets a question that takes three model calls: one tool call, then two in parallel, then the answer. Where the framework keeps a
conversation, a second question follows, which takes two more. The environment alone says where the model is: OPENAI_BASE_URL,
ANTHROPIC_BASE_URL, OPENAI_API_KEY and ANTHROPIC_API_KEY.
"""

import asyncio
import importlib
import json
import os
import sys
import traceback

# Before the imports of the frameworks: they read these once. Nothing may be sent to anything but the model.
os.environ |= {
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "OTEL_SDK_DISABLED": "true",
}

OPENAI = "gpt-5.2"
ANTHROPIC = "claude-sonnet-5-5"
PROMPT = "You answer in one sentence. Look up each temperature."
QUESTION = "Which of Zürich, Oslo and Quito is warmest?"
FOLLOW_UP = "And Lima?"
CELSIUS = {"Zürich": 21, "Oslo": 3, "Quito": 14, "Lima": 19}


def weather(city: str) -> str:
    """Returns the temperature in a city.

    Args:
        city: The name of the city.
    """
    return f"{city}: {CELSIUS[city]} °C"


def ran(texts, calls, n_calls, tokens, conversations=1):
    """What a set-up reports. `tokens` are input and output, as the framework counted them."""
    return {"texts": texts, "calls": calls, "n_calls": n_calls, "tokens": tokens, "conversations": conversations}


# OpenAI's own SDK, without a framework


CHAT_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Returns the temperature in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


async def openai_chat(client, stream):
    """One conversation of two questions."""
    messages, texts, calls, n_calls, tokens = [{"role": "system", "content": PROMPT}], [], [], 0, [0, 0]
    for question in (QUESTION, FOLLOW_UP):
        messages.append({"role": "user", "content": question})
        while True:
            asked = {"model": OPENAI, "messages": messages, "tools": [CHAT_TOOL]}
            if stream:
                async with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as events:
                    completion = await events.get_final_completion()
            else:
                completion = await client.chat.completions.create(**asked)
            message = completion.choices[0].message
            n_calls += 1
            tokens = [tokens[0] + completion.usage.prompt_tokens, tokens[1] + completion.usage.completion_tokens]
            if not message.tool_calls:
                break
            made = [{"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": call.function.arguments}}
                    for call in message.tool_calls]
            messages.append({"role": "assistant", "content": message.content, "tool_calls": made})
            for call in message.tool_calls:
                city = json.loads(call.function.arguments)["city"]
                calls.append(city)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": weather(city)})
        messages.append({"role": "assistant", "content": message.content})
        texts.append(message.content)
    return ran(texts, calls, n_calls, tokens)


async def openai_sdk(stream, n_conversations=1):
    from openai import AsyncOpenAI

    async with AsyncOpenAI() as client:
        runs = await asyncio.gather(*(openai_chat(client, stream) for _ in range(n_conversations)))
    return ran(
        [text for run in runs for text in run["texts"]],
        [city for run in runs for city in run["calls"]],
        sum(run["n_calls"] for run in runs),
        [sum(run["tokens"][at] for run in runs) for at in (0, 1)],
        n_conversations,
    )


# OpenAI Agents


async def agents(api, stream, server_state=False):
    from agents import Agent, Runner, SQLiteSession, function_tool, set_default_openai_api, set_tracing_disabled

    set_tracing_disabled(True)
    set_default_openai_api(api)
    agent = Agent(name="Weather", model=OPENAI, instructions=PROMPT, tools=[function_tool(weather)])
    session, previous = None if server_state else SQLiteSession("weather"), None
    texts, calls, n_calls, tokens = [], [], 0, [0, 0]
    for question in (QUESTION, FOLLOW_UP):
        # The provider keeps the conversation, or the session does.
        how = {"auto_previous_response_id": True, "previous_response_id": previous} if server_state else {"session": session}
        if stream:
            result = Runner.run_streamed(agent, question, **how)
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, question, **how)
        previous = result.last_response_id
        texts.append(result.final_output)
        calls += [json.loads(item.raw_item.arguments)["city"] for item in result.new_items if item.type == "tool_call_item"]
        usage = result.context_wrapper.usage
        n_calls, tokens = n_calls + usage.requests, [tokens[0] + usage.input_tokens, tokens[1] + usage.output_tokens]
    return ran(texts, calls, n_calls, tokens)


# LangChain


def langchain(model, stream):
    from langchain.agents import create_agent
    from langgraph.checkpoint.memory import InMemorySaver

    agent = create_agent(model, tools=[weather], system_prompt=PROMPT, checkpointer=InMemorySaver())
    thread, texts = {"configurable": {"thread_id": "weather"}}, []
    for question in (QUESTION, FOLLOW_UP):
        asked = {"messages": [{"role": "user", "content": question}]}
        if stream:
            for _ in agent.stream(asked, thread, stream_mode="messages"):
                pass
        else:
            agent.invoke(asked, thread)
        messages = agent.get_state(thread).values["messages"]
        texts.append(messages[-1].text)
    said = [message for message in messages if message.type == "ai"]
    usage = [message.usage_metadata or {} for message in said]
    tokens = [sum(one.get(key, 0) for one in usage) for key in ("input_tokens", "output_tokens")]
    return ran(texts, [call["args"]["city"] for message in said for call in message.tool_calls], len(said), tokens)


# Pydantic AI


async def pydantic_ai(model, stream):
    from pydantic_ai import Agent, AgentRunResultEvent, ToolCallPart

    agent = Agent(model, instructions=PROMPT, tools=[weather])
    history, texts, n_calls, tokens = [], [], 0, [0, 0]
    for question in (QUESTION, FOLLOW_UP):
        if stream:
            async with agent.run_stream_events(question, message_history=history) as events:
                async for event in events:
                    if isinstance(event, AgentRunResultEvent):
                        result = event.result
        else:
            result = await agent.run(question, message_history=history)
        history = result.all_messages()
        texts.append(result.output)
        usage = result.usage
        n_calls, tokens = n_calls + usage.requests, [tokens[0] + usage.input_tokens, tokens[1] + usage.output_tokens]
    calls = [part.args_as_dict()["city"] for message in history for part in message.parts if isinstance(part, ToolCallPart)]
    return ran(texts, calls, n_calls, tokens)


# Anthropic's tool runner


def tool_runner(stream, keeps):
    """`keeps` says who keeps the conversation: the provider, in a thread that outlives the runner; the provider, for one run; or the client."""
    import anthropic

    client, texts, calls, n_calls, tokens = anthropic.Anthropic(), [], [], 0, [0, 0]
    asked = {"model": ANTHROPIC, "max_tokens": 1000, "system": PROMPT, "tools": [anthropic.beta_tool(weather)]}
    thread = client.beta.messages.thread(**asked) if keeps == "thread" else None
    messages = []
    for question in (QUESTION,) if keeps == "run" else (QUESTION, FOLLOW_UP):
        messages.append({"role": "user", "content": question})
        if thread:
            thread.append(messages[-1])
            runner = thread.tool_runner(stream=stream)
        elif keeps == "run":
            runner = client.beta.messages.tool_runner(**asked, messages=messages, stream=stream)
        else:
            runner = client.beta.messages.tool_runner(**asked, messages=list(messages), stream=stream, thread=False)
        for message in runner:
            if stream:
                message = message.get_final_message()
            n_calls += 1
            usage = message.usage
            tokens = [tokens[0] + usage.input_tokens + usage.cache_read_input_tokens, tokens[1] + usage.output_tokens]
            calls += [block.input["city"] for block in message.content if block.type == "tool_use"]
            messages.append({"role": "assistant", "content": message.content})
            if results := runner.generate_tool_call_response():
                messages.append(results)
        texts.append("".join(block.text for block in message.content if block.type == "text"))
    return ran(texts, calls, n_calls, tokens)


SETUPS = {
    "openai-chat": lambda: openai_sdk(stream=False),
    "openai-chat-stream": lambda: openai_sdk(stream=True),
    # Two conversations at the same time that begin with the same request.
    "openai-chat-stream-two": lambda: openai_sdk(stream=True, n_conversations=2),
    "agents-responses": lambda: agents("responses", stream=False),
    "agents-responses-stream": lambda: agents("responses", stream=True),
    "agents-responses-state": lambda: agents("responses", stream=False, server_state=True),
    "agents-chat": lambda: agents("chat_completions", stream=False),
    "agents-chat-stream": lambda: agents("chat_completions", stream=True),
    "langchain-openai": lambda: langchain(f"openai:{OPENAI}", stream=False),
    "langchain-openai-stream": lambda: langchain(f"openai:{OPENAI}", stream=True),
    "langchain-anthropic": lambda: langchain(f"anthropic:{ANTHROPIC}", stream=False),
    "langchain-anthropic-stream": lambda: langchain(f"anthropic:{ANTHROPIC}", stream=True),
    "pydantic-chat": lambda: pydantic_ai(f"openai-chat:{OPENAI}", stream=False),
    "pydantic-chat-stream": lambda: pydantic_ai(f"openai-chat:{OPENAI}", stream=True),
    "pydantic-responses": lambda: pydantic_ai(f"openai-responses:{OPENAI}", stream=False),
    "pydantic-responses-stream": lambda: pydantic_ai(f"openai-responses:{OPENAI}", stream=True),
    "pydantic-anthropic": lambda: pydantic_ai(f"anthropic:{ANTHROPIC}", stream=False),
    "pydantic-anthropic-stream": lambda: pydantic_ai(f"anthropic:{ANTHROPIC}", stream=True),
    "anthropic-runner": lambda: tool_runner(stream=False, keeps="run"),
    "anthropic-runner-stream": lambda: tool_runner(stream=True, keeps="run"),
    "anthropic-thread": lambda: tool_runner(stream=False, keeps="thread"),
    "anthropic-unthreaded": lambda: tool_runner(stream=False, keeps="client"),
}

MODULES = {
    "openai": ["openai"],
    "agents": ["agents"],
    "langchain": ["langchain.agents", "langchain_anthropic", "langchain_openai", "langgraph.checkpoint.memory"],
    "pydantic": ["pydantic_ai", "pydantic_ai.models.anthropic", "pydantic_ai.models.openai"],
    "anthropic": ["anthropic"],
}


def run(name):
    outcome = SETUPS[name]()
    if asyncio.iscoroutine(outcome):
        outcome = asyncio.run(outcome)
    print(json.dumps({"setup": name} | outcome, ensure_ascii=False), flush=True)


def serve():
    """Forks a process for each set-up. Importing a framework takes far longer than running its set-up, so it is done once, before."""
    for line in sys.stdin:
        job = json.loads(line)
        for module in MODULES[job["name"].split("-")[0]]:
            importlib.import_module(module)
        child = os.fork()
        if child == 0:
            os.environ |= job["environment"]
            try:
                run(job["name"])
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        if os.waitpid(child, 0)[1]:
            print(json.dumps({"setup": job["name"], "failed": True}), flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--list"]:
            print("\n".join(SETUPS))
        case ["--serve"]:
            serve()
        case [name]:
            run(name)
        case _:
            sys.exit(__doc__)
