"""A TCP proxy that cuts connections in the middle: before the request has arrived, or before its answer has."""

from __future__ import annotations

import asyncio
import random
import threading


class LossyProxy:
    def __init__(self, port: int, loss: float, seed: int = 1) -> None:
        """`loss` is the share of pieces, in either direction, that are dropped together with their connection."""
        self.target, self.loss, self.dice, self.n_cut = port, loss, random.Random(seed), 0
        self._up = threading.Event()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._run, daemon=True).start()
        self._up.wait(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)

        async def start() -> None:
            server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            self._up.set()

        self._loop.run_until_complete(start())
        self._loop.run_forever()

    def close(self) -> None:
        def end() -> None:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.call_later(0.05, self._loop.stop)

        self._loop.call_soon_threadsafe(end)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        ways = [asyncio.ensure_future(self._pass(reader, to_writer)), asyncio.ensure_future(self._pass(to_reader, writer))]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for one in ways:
            one.cancel()
        for one in (writer, to_writer):
            one.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(65536):
                if self.dice.random() < self.loss:
                    self.n_cut += 1
                    return
                writer.write(piece)
                await writer.drain()
        except OSError:
            return
