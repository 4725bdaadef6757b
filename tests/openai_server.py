"""A real HTTP server on loopback that speaks the chat-completions protocol; what it answers is the test's to say."""

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def openai_server(answer):
    """Serve `answer(prompt, count)`: a text, a (status, text) pair, raw bytes, or seconds to wait before 'SCORE: 5'.

    Yields the base URL and the list of prompts received.
    """
    prompts = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            prompts.append(body["messages"][-1]["content"])
            said = answer(prompts[-1], len(prompts))
            status = 200
            if isinstance(said, tuple):
                status, said = said
            if isinstance(said, int | float):
                time.sleep(said)
                said = "SCORE: 5"
            if isinstance(said, bytes):
                data = said
            elif status != 200:
                data = json.dumps({"error": {"message": said, "type": "x", "code": None}}).encode()
            else:
                message = {"role": "assistant", "content": said}
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                data = json.dumps(
                    {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
                ).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", prompts
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
