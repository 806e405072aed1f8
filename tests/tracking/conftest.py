"""A headless Chromium that is told what to wait for, over its debugging socket."""

import base64
import itertools
import json
import shutil
import subprocess
import time
import urllib.request

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--window-size=1600,4000"]
PATIENCE_S = 90
USERS_PAGE = "/mlflow/users/current"
"""MLflow's own pages ask for it where there are no users, and get nothing."""


class Browser:
    """One tab. `complaints` holds what it could not load and exceptions that nobody caught."""

    def __init__(self, socket):
        self._socket, self._numbers = socket, itertools.count(1)
        self.complaints = []
        for domain in ("Runtime", "Log", "Page"):
            self._call(f"{domain}.enable")

    def open(self, address):
        """Goes to a page; nothing of the page before is left."""
        self.complaints.clear()
        self._call("Page.navigate", url="about:blank")
        self._call("Page.navigate", url=address)

    def wait(self, expression, wanted):
        """Evaluates JavaScript until `wanted(value)` holds; returns the value, or the last one when patience ends."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")
            if wanted(answer) or time.monotonic() > deadline:
                return answer
            time.sleep(0.2)

    def picture(self, path):
        """Keeps an image of the page."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot")["data"]))

    def _call(self, method, **parameters):
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self._listen(message)

    def _listen(self, message):
        details = message.get("params", {})
        if message["method"] == "Runtime.exceptionThrown":
            self.complaints.append(details["exceptionDetails"]["text"])
        elif message["method"] == "Log.entryAdded" and details["entry"]["level"] == "error":
            complaint = f"{details['entry']['text']} {details['entry'].get('url')}"
            if not complaint.endswith(USERS_PAGE):
                self.complaints.append(complaint)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A tab of a fresh Chromium."""
    if CHROMIUM is None:
        pytest.skip("no Chromium: apt-get install chromium")
    websocket = pytest.importorskip("websocket")
    profile = tmp_path_factory.mktemp("chromium")
    process = subprocess.Popen(
        [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "--remote-debugging-port=0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        port = wait_for_port(profile / "DevToolsActivePort", process)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=30) as answer:
            tab = next(target for target in json.load(answer) if target["type"] == "page")
        socket = websocket.create_connection(tab["webSocketDebuggerUrl"], timeout=PATIENCE_S, suppress_origin=True)
        yield Browser(socket)
        socket.close()
    finally:
        process.terminate()
        process.wait(20)


def wait_for_port(path, process):
    deadline = time.monotonic() + PATIENCE_S
    while not (path.exists() and path.read_text().strip()):
        assert process.poll() is None, "Chromium ended"
        assert time.monotonic() < deadline, "Chromium did not start"
        time.sleep(0.05)
    return int(path.read_text().splitlines()[0])
