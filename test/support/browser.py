# SPDX-License-Identifier: Apache-2.0
"""Drive headless Chromium through chromedriver's W3C WebDriver protocol, which is JSON over HTTP.

The protocol needs a few requests only. A client library would bring a dozen packages more.
"""

import contextlib
import json
import shutil
import subprocess
import urllib.error
import urllib.request

import pytest

from support.waiting import WaitTimeoutError

#: Limit of one command in seconds. A busy machine may need half a minute to start a browser.
COMMAND_S = 120


@contextlib.contextmanager
def open_browser():
    """Start Chromium and yield a Browser. Skip the test without chromium or chromedriver."""
    programs = {
        name: next(filter(None, map(shutil.which, names)), None)
        for name, names in (
            ('chromium', ('chromium', 'chromium-browser', 'google-chrome')),
            ('chromedriver', ('chromedriver',)),
        )
    }
    if missing := [name for name, path in programs.items() if path is None]:
        pytest.skip(f'needs {" and ".join(missing)}')
    with subprocess.Popen(
        [programs['chromedriver'], '--port=0'], stdout=subprocess.PIPE, text=True
    ) as driver:
        try:
            browser = Browser(_port(driver), programs['chromium'])
            try:
                yield browser
            finally:
                browser.close()
        finally:
            driver.terminate()


def _port(driver):
    for line in driver.stdout:
        if 'started successfully on port' in line:
            return int(line.rstrip('. \n').rpartition(' ')[2])
    raise RuntimeError('chromedriver ended before it named its port')


class Browser:
    """One window of Chromium."""

    def __init__(self, port, program):
        self._address = f'http://127.0.0.1:{port}'
        capabilities = {
            'browserName': 'chrome',
            'goog:chromeOptions': {
                'binary': program,
                # Chromium refuses its sandbox as root, and Docker has a small /dev/shm.
                'args': ['--headless=new', '--no-sandbox', '--disable-dev-shm-usage'],
            },
            'goog:loggingPrefs': {'browser': 'ALL', 'performance': 'ALL'},
        }
        made = self._send('POST', '/session', {'capabilities': {'alwaysMatch': capabilities}})
        self._address += f'/session/{made["sessionId"]}'

    def _send(self, method, path, content=None):
        """Send a command, and return the value of its answer.

        Raises:
            WaitTimeoutError: the answer did not arrive within COMMAND_S.
            RuntimeError: the driver reports an error.
        """
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(f'{self._address}{path}', body, method=method)
        request.add_header('Content-Type', 'application/json')
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=COMMAND_S) as answer:
                return json.load(answer)['value']
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)['value']['message']) from error
        except TimeoutError as error:
            raise WaitTimeoutError(f'expected within {COMMAND_S} s: {method} {path}') from error

    def close(self):
        self._send('DELETE', '')

    def command(self, name, **parameters):
        """Send a command of the DevTools protocol, and return its result."""
        return self._send('POST', '/goog/cdp/execute', {'cmd': name, 'params': parameters})

    def set_size(self, width, height=900, *, dark=False):
        """Set the size of the page. A window could not be narrower than 500 pixels."""
        size = {'width': width, 'height': height, 'deviceScaleFactor': 1, 'mobile': False}
        self.command('Emulation.setDeviceMetricsOverride', **size)
        scheme = {'name': 'prefers-color-scheme', 'value': 'dark' if dark else 'light'}
        self.command('Emulation.setEmulatedMedia', features=[scheme])

    def open(self, path):
        """Open a file, and forget earlier log entries."""
        self.console()
        self.requests()
        self._send('POST', '/url', {'url': path.resolve().as_uri()})

    def run(self, script, *arguments):
        """Run the body of a function in the page, and return its result."""
        return self._send('POST', '/execute/sync', {'script': script, 'args': list(arguments)})

    def press(self, *keys):
        """Press and release keys one after the other."""
        actions = [{'type': kind, 'value': key} for key in keys for kind in ('keyDown', 'keyUp')]
        keyboard = {'type': 'key', 'id': 'keyboard', 'actions': actions}
        self._send('POST', '/actions', {'actions': [keyboard]})

    def console(self):
        """Return the new messages of the console."""
        return [entry['message'] for entry in self._log('browser')]

    def requests(self):
        """Return the addresses that the page requested since the last call."""
        events = [json.loads(entry['message'])['message'] for entry in self._log('performance')]
        sent = [event for event in events if event['method'] == 'Network.requestWillBeSent']
        return [event['params']['request']['url'] for event in sent]

    def _log(self, kind):
        return self._send('POST', '/se/log', {'type': kind})

    def screenshot(self, *, whole=True):
        """Return a PNG of the page, or of the visible part."""
        import base64

        shot = self.command(
            'Page.captureScreenshot',
            captureBeyondViewport=whole,
            **({'clip': self._clip()} if whole else {}),
        )
        return base64.b64decode(shot['data'])

    def _clip(self):
        size = self.command('Page.getLayoutMetrics')['cssContentSize']
        return {'x': 0, 'y': 0, 'width': size['width'], 'height': size['height'], 'scale': 1}

    def print_pdf(self):
        """Return the printed page as PDF."""
        import base64

        return base64.b64decode(self._send('POST', '/print', {}))
