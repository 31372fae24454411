"""A tap: relays TCP connections to a port and keeps the bytes of both directions, so that a test sees exactly what was sent."""

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class Message:
    """An HTTP/1.1 request or answer. Header names are in lower case; the body is without the framing of chunks."""

    first: list[str]
    headers: list[tuple[str, str]]
    body: bytes


@dataclass
class Exchange:
    """A request and its answer."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    status: int
    answer_headers: list[tuple[str, str]]
    answer: bytes


class Tap:
    def __init__(self, to_port: int):
        self.to_port = to_port
        self.port = 0
        # Per connection: what the client sent, and what the server sent.
        self.connections: list[tuple[bytearray, bytearray]] = []
        self.relays: set[asyncio.Task] = set()

    async def start(self, port: int = 0) -> "Tap":
        """Starts on a port; 0 means any free port."""
        self.server = await asyncio.start_server(self._relay, "127.0.0.1", port)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Stops, and cuts the connections that a client keeps."""
        self.server.close()
        for relay in self.relays:
            relay.cancel()
        await asyncio.gather(*self.relays, return_exceptions=True)

    async def _relay(self, client_reader, client_writer) -> None:
        self.relays.add(asyncio.current_task())
        asked, answered = bytearray(), bytearray()
        self.connections.append((asked, answered))

        async def copy(reader, writer, kept):
            try:
                while piece := await reader.read(65536):
                    kept += piece
                    writer.write(piece)
                    await writer.drain()
                writer.write_eof()
            except OSError:
                writer.close()

        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.to_port)
            await asyncio.gather(copy(client_reader, server_writer, asked), copy(server_reader, client_writer, answered))
            server_writer.close()
        except (OSError, asyncio.CancelledError):
            # The port does not answer, or the tap was stopped.
            pass
        client_writer.close()

    def exchanges(self) -> list[Exchange]:
        """Returns the exchanges so far, those of each connection in their order."""
        pairs = itertools.chain.from_iterable(zip(_messages(bytes(asked)), _messages(bytes(answered))) for asked, answered in self.connections)
        return [
            Exchange(request.first[0], request.first[1], request.headers, request.body, int(answer.first[1]), answer.headers, answer.body)
            for request, answer in pairs
        ]


def _messages(data: bytes) -> Iterator[Message]:
    """Yields the messages of one direction of a connection, up to the first that is not complete."""
    while data:
        head, separator, data = data.partition(b"\r\n\r\n")
        if not separator:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        if "HTTP/1.1" not in first:
            raise ValueError(f"not HTTP/1.1: {first!r}")
        headers = [(name.strip().lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        fields = dict(headers)
        if fields.get("transfer-encoding") == "chunked":
            body = b""
            # A client may leave after the last event of a stream, before the last chunk, which is empty.
            while data:
                size, _, data = data.partition(b"\r\n")
                length = int(size.split(b";")[0], 16)
                body, data = body + data[:length], data[length + 2 :]
                if not length:
                    break
        else:
            length = int(fields.get("content-length", 0))
            body, data = data[:length], data[length:]
            if len(body) < length:
                return
        yield Message(first.split(" ", 2), headers, body)
