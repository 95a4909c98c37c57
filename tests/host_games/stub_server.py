"""An HTTP server in this process that answers as a test says."""

import contextlib
import http.server
import json
import threading


@contextlib.contextmanager
def answering(answer):
    """A server on the loopback.

    Args:
      answer: called with the path, the headers and the JSON of a request (None for a
        GET); returns the status and the body, bytes or a document.

    Yields:
      Its URL, and the list of (path, document) that it was sent.
    """
    requests = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            length = int(self.headers["Content-Length"])
            assert self.headers["Content-Type"] == "application/json"
            self.reply(json.loads(self.rfile.read(length)))

        def do_GET(self):
            self.reply(None)

        def reply(self, document):
            requests.append((self.path, document))
            status, body = answer(self.path, self.headers, document)
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)

        def log_message(self, *args):
            """Nothing on standard error."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
