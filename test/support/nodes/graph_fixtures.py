# SPDX-License-Identifier: Apache-2.0
"""Provide fixtures for tests over DDS: pytest_plugins = ['support.nodes.graph_fixtures']."""

import contextlib
import os
import sys

import pytest
from rclpy.lifecycle import LifecycleNode
from sensor_msgs.msg import Image

from support import programs
from support.models.tiny_model import write_tiny_model
from support.nodes.graph import HANDSHAKE, Client, Detector, command_image
from support.nodes.intake_taker import Taker, intakes
from support.programs import script
from trt_perception.transport.shared_memory import unfinished_ports

_clients = []


@pytest.fixture(scope='session')
def client():
    client = Client()
    _clients.append(client)
    yield client
    _clients.remove(client)
    client.close()


@pytest.fixture(autouse=True, scope='module')
def _renewed_client():
    """Replace an outdated participant that the detector of the file before still used."""
    for client in _clients:
        client.renew()


@pytest.fixture(scope='session')
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp('model') / 'tiny.onnx')


@pytest.fixture
def start_detector(client):
    """Return a function that starts detectors, which end with the test."""
    with contextlib.ExitStack() as stack:

        def start(parameters=None, **options):
            detector = Detector(client, parameters, **options)
            stack.callback(detector.close)
            return detector

        yield start


@pytest.fixture(scope='module')
def active_detector(client, model):
    """Return an active detector that a module's tests share. Each test must restore its state."""
    detector = Detector(client, {'engine_path': str(model), 'autostart': True})
    try:
        detector.connect()
        yield detector
    finally:
        detector.close()


@pytest.fixture(scope='module')
def _scripted_detector(client):
    detector = Detector(client, command=script('nodes/scripted_node.py'))
    yield detector
    detector.close()


@pytest.fixture
def scripted_detector(_scripted_detector):
    """Return an active scripted_node, shared by all tests of a module."""
    _scripted_detector.bring_to('unconfigured')
    _scripted_detector.bring_to('active')
    _scripted_detector.connect(command_image(0, frame_id=HANDSHAKE))
    if isinstance(_scripted_detector.detections[0], Image):
        _scripted_detector.settled_counts()  # a map is skipped while an earlier one is published
    # When this image has been answered, no earlier handshake image is in flight.
    _scripted_detector.ask(command_image(0))
    _scripted_detector.settled_counts()
    _scripted_detector.detections.clear()
    _scripted_detector.program.forget()
    return _scripted_detector


@pytest.fixture(autouse=True)
def _show_output():
    yield
    for program in programs.programs:
        program.show()
    for client in _clients:
        client.outdated |= any(program.code for program in programs.programs)
        client.renew()
    programs.programs[:] = [program for program in programs.programs if program.alive]


# A process announces itself 25 times in its first 5 s and then every second, so that processes
# find each other soon even if they miss an announcement. By default, it announces itself 5 times
# in 0.5 s and then every 3 s, which is half of the duration of these tests. Do not announce more
# often: Fast DDS of Kilted may wait for itself forever if another process ends at the time of an
# announcement, as docs/reliability.md says. With calls between participants of a process, it may
# wait forever, too, as config/fastdds_node.xml says. The other settings are Fast DDS's defaults.
_PROFILE = """<?xml version="1.0" encoding="UTF-8" ?>
<dds xmlns="http://www.eprosima.com">
  <library_settings>
    <intraprocess_delivery>OFF</intraprocess_delivery>
  </library_settings>
  <profiles>
    <participant profile_name="tests" is_default_profile="true">
      <rtps>
        <builtin>
          <discovery_config>
            <leaseAnnouncement>
              <sec>1</sec>
            </leaseAnnouncement>
            <initialAnnouncements>
              <count>25</count>
              <period>
                <sec>0</sec>
                <nanosec>200000000</nanosec>
              </period>
            </initialAnnouncements>
          </discovery_config>
        </builtin>
      </rtps>
    </participant>
  </profiles>
</dds>
"""


def share_environment(folder):
    """Set the environment that all processes of a run share, before the first one starts."""
    mend_shared_memory()
    os.environ['ROS_LOG_DIR'] = str(folder / 'ros_logs')
    os.environ['RCUTILS_COLORIZED_OUTPUT'] = '0'
    profile = folder / 'fastdds.xml'
    profile.write_text(_PROFILE)
    # Fast DDS of Jazzy reads only the first variable, Fast DDS of Kilted only the second.
    os.environ.setdefault('FASTRTPS_DEFAULT_PROFILES_FILE', str(profile))
    os.environ.setdefault('FASTDDS_DEFAULT_PROFILES_FILE', str(profile))


def mend_shared_memory():
    """Remove unfinished shared-memory ports of killed processes. Other processes would hang there.

    Truncating a port to one byte first releases the processes that already wait for it.
    """
    for port in unfinished_ports():
        print(f'removed the unfinished port {port}', file=sys.__stderr__, flush=True)
        with contextlib.suppress(OSError):  # another process of this run removed it first
            os.truncate(port, 1)
            port.unlink()


@pytest.fixture(autouse=True, scope='session')
def _environment(tmp_path_factory):
    share_environment(tmp_path_factory.mktemp('environment'))


@pytest.fixture
def node(client):
    """Return a lifecycle node of this process."""
    node = LifecycleNode('node_of_test', context=client.context)
    client.add(node)
    yield node
    client.remove(node)
    node.destroy_node()


@pytest.fixture
def make_taker(client):
    """Return a function that makes nodes that receive images. The nodes end with the test."""
    takers = []

    def make(**settings):
        takers.append(Taker(client, **settings))
        return takers[-1]

    before = intakes()
    yield make
    for taker in takers:
        taker.close()
    assert intakes() == before
