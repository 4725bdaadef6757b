"""A real HTTP server on loopback that speaks the chat-completions protocol; the test decides what
it answers."""

import json
import re
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Reply:
    """What the server does with a request.

    `raw` is sent in place of the protocol's JSON; `reset` breaks the connection without an answer;
    `total` is for `tokens` that cannot be added up.
    """

    text: str = ""
    status: int = 200
    code: str | None = None
    headers: dict = field(default_factory=dict)
    seconds: float = 0.0
    tokens: tuple = (100, 10)
    finish: str = "stop"
    refusal: str | None = None
    raw: bytes | None = None
    reset: bool = False
    model: str | None = "m"
    total: bool = True


def nonce_in(body):
    """The nonce that the verdict has to carry, as a coach would read it off its instructions."""
    prompt = body["messages"][-1]["content"]
    return re.findall(
        r'"nonce": "(\w+)"' if "response_format" in body else r"^SCORE (\w+):", prompt, re.MULTILINE
    )[-1]


def verdict(body, score, correct="yes", says="It was fine.", better=None):
    """A coach that does what it is told, in whichever form it is asked for; with a correction where
    JSON may hold one."""
    prompt = body["messages"][-1]["content"]
    if "response_format" in body:
        given = {"nonce": nonce_in(body), "explanation": says, "criteria": [], "score": score}
        fields = body["response_format"]["json_schema"]["schema"]["properties"]
        if "correct" in fields:
            given["correct"] = correct == "yes"
        if "correction" in fields:
            given["correction"] = better
        return json.dumps(given)
    nonce = nonce_in(body)
    asked = f"CORRECT {nonce}: {correct}\n" if f"CORRECT {nonce}" in prompt else ""
    return f"{says}\n{asked}SCORE {nonce}: {score}"


class Bodies(list):
    """The bodies that a server received, and the paths that they came to."""

    def __init__(self):
        self.open = 0
        self.paths = []

    def connections(self):
        """How many connections are open."""
        return self.open


def eventually(holds, seconds=60.0):
    """Wait until something holds: another thread sees what we did a little later."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


@contextmanager
def openai_server(answer):
    """Serve `answer(body, count)`: a `Reply`, or a text for a plain one.

    Yields the base URL and the list of bodies received, which also knows how many connections are
    open.
    """
    bodies = Bodies()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self):
            super().setup()
            with lock:
                bodies.open += 1

        def finish(self):
            with lock:
                bodies.open -= 1
            super().finish()

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                bodies.append(body)
                bodies.paths.append(self.path)
                count = len(bodies)
            answered = answer(body, count)
            reply = answered if isinstance(answered, Reply) else Reply(answered)
            time.sleep(reply.seconds)
            if reply.reset:
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            self.send_response(reply.status)
            self.send_header("Content-Type", "application/json")
            for name, value in reply.headers.items():
                self.send_header(name, value)
            data = reply.raw if reply.raw is not None else json.dumps(content(reply)).encode()
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments):
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request, client_address):
            pass  # a client that gave up

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", bodies
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def content(reply):
    if reply.status != 200:
        return {"error": {"message": reply.text, "type": "x", "code": reply.code}}
    message = {
        "role": "assistant",
        "content": None if reply.refusal else reply.text,
        "refusal": reply.refusal,
    }
    prompt, completion = reply.tokens or (0, 0)
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    usage |= {"total_tokens": prompt + completion} if reply.total else {}
    choice = {"index": 0, "message": message, "finish_reason": reply.finish}
    whole = {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": reply.model,
        "choices": [choice],
    }
    return whole if reply.tokens is None else {**whole, "usage": usage}
