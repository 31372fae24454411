"""Runs a LangGraph agent with a checkpoint database, for two threads: `checkpoints.py FILE`. OPENAI_BASE_URL says where the model is."""

import sqlite3
import sys

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite import SqliteSaver

from setups import FOLLOW_UP, OPENAI, PROMPT, QUESTION, weather

saver = SqliteSaver(sqlite3.connect(sys.argv[1], check_same_thread=False))
agent = create_agent(ChatOpenAI(model=OPENAI), [weather], system_prompt=PROMPT, checkpointer=saver, name="weather")
for thread, questions in {"both": [QUESTION, FOLLOW_UP], "one": [QUESTION]}.items():
    for question in questions:
        agent.invoke({"messages": [("user", question)]}, {"configurable": {"thread_id": thread}})
