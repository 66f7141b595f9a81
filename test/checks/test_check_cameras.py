"""doctor's checks of cameras, driven to every colour they have; and how findings are shown."""

import json

import pytest

from trt_perception.checks.cameras import CameraReport, check_cameras
from trt_perception.checks.finding import LEVELS, Finding, as_json, guarded, texts


def by_name(findings):
    return {finding.name: finding for finding in findings}


# Cameras.


def camera(topic='/image', **changes):
    facts = {
        'compressed': topic.endswith('/compressed'),
        'reliability': ('reliable',),
        'received': 90,
        'lost': 0,
        'seconds': 3.0,
        'rate_hz': 30.0,
        'message_bytes': 6_220_800,
        'description': '1920x1080 bgr8',
        'encoding': 'bgr8',
    }
    return CameraReport(topic, **{**facts, **changes})


def cameras(
    *heard,
    wanted='',
    given=True,
    off=(),
    reliable=(),
    other_types=None,
    segment=2**26,
    **transports,
):
    if isinstance(wanted, str):
        wanted = {'': wanted} if wanted else {}
    findings = check_cameras(
        heard,
        wanted=wanted,
        topics_given=given,
        transports={'' if name == 'node' else name: kind for name, kind in transports.items()},
        reliable=reliable,
        off=off,
        other_types=other_types or {},
        segment_bytes=segment,
        profile_fix='CURE',
        encodings=['bgr8'],
    )
    return by_name(findings)


def test_good_cameras():
    findings = cameras(camera(), camera('/image/compressed'), camera('/b', lost=None))
    assert {finding.level for finding in findings.values()} == {'green'}
    assert findings['/image'].found == '30.0 Hz, 1920x1080 bgr8, 6.2 MB, reliable'
    slow = cameras(camera(received=2, rate_hz=None))['/image']
    assert slow.found == '2 images in 3 s, 1920x1080 bgr8, 6.2 MB, reliable'


@pytest.mark.parametrize(
    ('changes', 'segment', 'found', 'fix'),
    [
        ({'reliability': (), 'received': 0}, 2**26, 'nobody publishes', 'remapping'),
        ({'received': 0}, 2**26, 'silent for 3 s', 'CURE'),
        ({'lost': 1, 'received': 99}, 2**26, '', ''),
        ({'fault': 'it is damaged'}, 2**26, 'cannot be read: it is damaged', 'counts them'),
        ({'lost': 2}, 2**26, '2 of 92 lost', 'CURE'),
        ({'reliability': ('reliable', 'best_effort')}, 2**26, '2 publishers', 'namespace'),
        ({'message_bytes': 2**26 + 1}, 2**26, 'larger than the 64.0 MiB', 'CURE'),
        ({'reliability': ('best_effort',)}, 2**26, '', ''),
        (
            {'reliability': ('best_effort',), 'message_bytes': 300_000},
            2**19,
            'best effort',
            'CURE',
        ),
        ({'reliability': ('best_effort',), 'message_bytes': 90_000}, 2**19, '', ''),
        ({'encoding': '32FC1'}, 2**26, 'needs cv_bridge', 'apt install'),
    ],
)
def test_cameras(changes, segment, found, fix):
    finding = cameras(camera(**changes), segment=segment)['/image']
    assert finding.level == ('yellow' if found else 'green')
    assert found in finding.found
    assert fix in finding.fix


@pytest.mark.parametrize(('read', 'sent'), [('/a', 'compressed'), ('/a/compressed', 'raw')])
def test_a_camera_that_sends_the_other_transport(read, sent):
    silent = camera(read, received=0, reliability=())
    other = camera('/a' if sent == 'raw' else '/a/compressed')
    finding = cameras(silent, other)[read]
    assert f'image_transport:={sent}' in finding.fix
    taken = 'raw' if sent == 'compressed' else 'compressed'
    [finding] = cameras(silent, other, wanted='/a', node=taken).values()  # said once
    assert finding.level == 'red'
    assert f'image_transport:={sent}' in finding.fix
    [finding] = cameras(silent, other, wanted='/a', node=sent).values()
    assert finding.level == 'green'
    both_silent = camera(other.topic, received=0, reliability=())
    [finding] = cameras(silent, both_silent, wanted='/a').values()
    assert finding.name == '/a'
    assert 'start the camera' in finding.fix


def test_cameras_come_in_the_order_of_their_names():
    heard = [camera(f'/{name}') for name in ('x', 'c', 'b', 'a')]
    names = ['front', 'rear', 'top']
    found = cameras(*heard, wanted=dict(zip(names, ('/b', '/c', '/a'), strict=True)))
    assert list(found) == ['front: /b', 'rear: /c', 'top: /a', '/x']


def test_types_that_no_detector_reads_by_this_name():
    odd = camera('/cam/jpeg', compressed=True)
    finding = cameras(odd)['/cam/jpeg']
    assert finding.level == 'yellow'
    assert finding.fix == 'remap what publishes it to /cam/jpeg/compressed'
    assert cameras(camera('/a/compressed', compressed=False))['/a/compressed'].level == 'yellow'
    for wanted in ({'': '/image'}, {'cam': '/image'}):
        for finding in cameras(odd, wanted=wanted).values():
            assert 'image:=/cam/jpeg' not in finding.fix


def test_a_topic_that_ends_in_compressed_is_no_topic_of_a_camera():
    both = camera('/r/compressed'), camera('/r')
    for heard in (both, both[:1]):
        finding = cameras(*heard, wanted='/r/compressed')['/r/compressed']
        assert finding.level == 'red'
        assert 'image_topic:=/r image_transport:=compressed (detect.launch.py)' in finding.fix


def test_names_that_contain_each_other():
    heard = camera('/front_rear/image_raw'), camera('/rear/image_raw')
    for names in (('rear', 'front_rear'), ('front_rear', 'rear')):
        found = cameras(*heard, wanted={name: f'/{name}/image' for name in names})
        for name in names:
            fix = found[f'{name}: /{name}/image'].fix
            assert f'-r {name}/image:=/{name}/image_raw' in fix
            assert "image_topic:='/{camera}/image_raw'" in fix
    fix = cameras(camera('/front/image_raw'), wanted={'a': '/a/image'})['a: /a/image'].fix
    assert '-r a/image:=/front/image_raw' in fix
    assert '{camera}' not in fix


def test_nobody_misses_a_camera_that_is_switched_off():
    silent = camera('/rear', received=0, reliability=())
    wanted = {'rear': '/rear', 'top': '/top'}
    for off, level in (((), 'red'), (('rear', 'top'), 'green')):
        findings = cameras(silent, wanted=wanted, off=off)
        assert {name: each.level for name, each in findings.items()} == {
            'rear: /rear': level,
            'top: /top': level,
        }
        for finding in findings.values():
            assert ('switched off' in finding.found) == bool(off)
        assert cameras(wanted=wanted, off=off)['topics'].level == ('yellow' if off else 'red')
    assert cameras(silent, wanted=wanted, off=['top'])['rear: /rear'].level == 'red'


def test_images_of_a_wanted_camera_that_cannot_be_read_are_an_error():
    bad = camera('/rear', fault='it is damaged')
    for off, level in (((), 'red'), (('rear',), 'green')):
        finding = cameras(bad, wanted={'rear': '/rear'}, off=off)['rear: /rear']
        assert finding.level == level
        assert ('switched off' in finding.found) == bool(off)


def test_only_compressed():
    finding = cameras(camera('/front/compressed'))['/front/compressed']
    assert finding.level == 'yellow'
    assert 'image_topic:=/front image_transport:=compressed (detect.launch.py)' in finding.fix
    assert '-r image:=/front -p image_transport:=compressed (detector_node)' in finding.fix


def test_the_transport_that_the_detector_takes():
    only = camera('/front/compressed')
    for transport in ('compressed', 'auto'):
        assert cameras(only, node=transport)['/front/compressed'].level == 'green'
    wanted = {'a': '/front', 'b': '/rear', 'c': '/top'}
    heard = (only, camera('/rear'), camera('/top'), camera('/top/compressed'), camera('/other'))
    findings = cameras(*heard, wanted=wanted, a='raw', b='compressed', c='compressed')
    levels = {name: finding.level for name, finding in findings.items()}
    assert levels == {
        'a: /front/compressed': 'red',
        'b: /rear': 'red',
        'c: /top': 'green',
        'c: /top/compressed': 'green',
        '/other': 'green',
    }
    cure = 'camera.a.image_transport: compressed (parameter file)'
    assert cure in findings['a: /front/compressed'].fix
    assert 'camera.b.image_transport: raw (parameter file)' in findings['b: /rear'].fix
    one = cameras(camera('/rear'), wanted='/rear', node='compressed')['/rear']
    assert 'only raw images' in one.found
    assert 'image_transport:=raw' in one.fix


def test_a_publisher_that_offers_less_than_the_detector_asks_for():
    less, good = camera('/a', reliability=('best_effort',)), camera('/b')
    wanted = {'front': '/a', 'rear': '/b'}
    for reliable in ((), ('rear',)):
        findings = cameras(less, good, wanted=wanted, reliable=reliable)
        assert {finding.level for finding in findings.values()} == {'green'}
    findings = cameras(less, good, wanted=wanted, reliable=('front', 'rear'))
    assert findings['rear: /b'].level == 'green'
    assert findings['front: /a'].level == 'red'
    assert 'set camera.front.image_qos.reliability to auto' in findings['front: /a'].fix
    one = cameras(less, wanted='/a', reliable=('',))['/a']
    assert one.level == 'red'
    assert 'set image_qos.reliability to auto' in one.fix
    mixed = camera('/a', reliability=('best_effort', 'reliable'), lost=None)
    assert cameras(mixed, wanted='/a', reliable=('',))['/a'].level == 'yellow'
    off = cameras(less, wanted=wanted, reliable=('front',), off=('front',))['front: /a']
    assert off.level == 'green'


def test_what_is_wrong_with_the_transport_that_is_not_taken_does_not_matter():
    sick = {'received': 0}
    for transport, taken, other in (
        ('raw', '/a', '/a/compressed'),
        ('compressed', '/a/compressed', '/a'),
    ):
        heard = camera(taken), camera(other, reliability=('best_effort',))
        found = cameras(*heard, wanted={'front': '/a'}, reliable=('front',), front=transport)
        assert {finding.level for finding in found.values()} == {'green'}
        found = cameras(camera(taken), camera(other, **sick), wanted='/a', node=transport)
        assert (found[taken].level, found[other].level) == ('green', 'yellow')
        found = cameras(camera(taken, **sick), camera(other), wanted='/a', node=transport)
        assert found[taken].level == 'red'


def test_no_cameras():
    assert cameras()['topics'].level == 'yellow'
    assert cameras(wanted='/image')['topics'].level == 'red'
    finding = cameras(camera(), wanted='/front')['/front']
    assert finding.level == 'red'
    assert '/image' in finding.fix
    assert cameras(camera(received=0), wanted='/image')['/image'].level == 'red'


def test_several_cameras_are_called_by_their_names():
    wanted = {'front': '/front/image', 'rear': '/rear/image', 'top': '/up/image'}
    heard = (
        camera('/front/image'),
        camera('/rear/image/compressed', received=0),
        camera('/other'),
        camera('/top/image_raw'),
    )
    findings = cameras(*heard, wanted=wanted)
    assert findings['front: /front/image'].level == 'green'
    silent = findings['rear: /rear/image/compressed']
    assert silent.level == 'red'
    assert 'silent for 3 s' in silent.found
    missing = findings['top: /up/image']
    assert missing.level == 'red'
    assert '-r top/image:=/top/image_raw (detector_node)' in missing.fix
    assert 'for all' not in missing.fix
    assert findings['/other'].level == 'green'
    assert len(findings) == 5
    # Where nobody said which topics these are, they may be remapped.
    guessed = cameras(*heard, wanted=wanted, given=False)
    assert guessed['top: /up/image'].level == 'yellow'
    assert guessed['rear: /rear/image/compressed'].level == 'red'


def test_one_argument_for_the_topics_of_all_cameras():
    heard = camera('/front/image_raw'), camera('/rear/image_raw')
    for topics, argument in (
        (('/image', '/image_2'), "for all cameras image_topic:='/{camera}/image_raw' (detect"),
        (('/front/image_raw', '/image_2'), ''),
    ):
        findings = cameras(*heard, wanted=dict(zip(('front', 'rear'), topics, strict=True)))
        fix = findings['rear: /image_2'].fix
        assert '-r rear/image:=/rear/image_raw (detector_node)' in fix
        assert (argument or 'for all') in fix if argument else 'for all' not in fix


def test_topics_are_offered_that_somebody_publishes_and_nobody_has():
    heard = (
        camera('/front/image'),
        camera('/read_only', reliability=(), received=0),
        camera('/b_left'),
        camera('/a_right/compressed'),
    )
    wanted = {'front': '/front/image', 'right': '/r', 'left': '/l', 'rear': '/b'}
    findings = cameras(*heard, wanted=wanted)
    right = findings['right: /r'].fix
    assert 'images are on /b_left, /a_right/compressed: start with --ros-args' in right
    assert '-r right/image:=/a_right -p camera.right.image_transport:=compressed' in right
    assert '-r left/image:=/b_left (detector_node)' in findings['left: /l'].fix
    # One topic is not for two of them.
    assert findings['rear: /b'].fix == 'start the camera, or mend the remapping of its topic'
    assert findings['/read_only'].level == 'yellow'
    one = cameras(*heard, wanted='/front/raw')['/front/raw']
    assert 'start with image_topic:=/front/image' in one.fix


def test_another_type_on_the_topic_of_a_camera():
    types = {'/front': '/talker publishes std_msgs/msg/String'}
    for heard in ((), (camera('/other'),)):
        for name in ('front', ''):
            found = cameras(*heard, wanted={name: '/front'}, other_types=types)
            finding = found['front: /front' if name else '/front']
            assert finding.level == 'red'
            assert '/talker publishes std_msgs/msg/String, expected' in finding.found
            topic = '/other' if heard else '/its/topic'
            assert f'{name}{"/" if name else ""}image:={topic}' in finding.fix


def test_compressed_images_where_raw_ones_are_read():
    wrong = camera('/front', compressed=True)
    for name in ('front', ''):
        for transport in ('raw', 'compressed', 'auto'):
            for heard in ((wrong,), (wrong, camera('/front/compressed'))):
                found = cameras(*heard, wanted={name: '/front'}, **{name or 'node': transport})
                finding = found['front: /front' if name else '/front']
                if transport == 'compressed' and len(heard) == 2:
                    assert finding.level == 'yellow'
                    continue
                assert finding.level == 'red'
                assert 'CompressedImage, expected sensor_msgs/msg/Image' in finding.found
                assert f'{name}{"/" if name else ""}image:=/its/topic' in finding.fix


def test_of_topics_that_the_detector_does_not_read_the_transport_does_not_matter():
    heard = (camera('/front/image'), camera('/other/compressed'))
    for name in ('front', ''):
        findings = cameras(*heard, wanted={name: '/front/image'})
        assert findings['/other/compressed'].level == 'green'


def test_several_cameras_where_there_is_none():
    findings = cameras(wanted={'front': '/front/image', 'rear': '/rear/image'})
    assert list(findings) == ['topics', 'front: /front/image', 'rear: /rear/image']
    assert {finding.level for finding in findings.values()} == {'red'}


# What all share.


def test_a_check_that_raises_is_a_finding():
    def check():
        yield Finding('a', 'one', 'green', 'good')
        raise RuntimeError('this broke')

    one, two = guarded('a', 'all', check)
    assert one.level == 'green'
    assert two.level == 'red'
    assert 'RuntimeError: this broke' in two.found


def test_whatever_is_not_green_has_a_fix():
    for level in LEVELS:
        with pytest.raises(AssertionError):
            Finding('a', 'b', level, 'c', 'fix' if level == 'green' else '')


def test_reports():
    findings = [
        Finding('one', 'a', 'green', 'good'),
        Finding('one', 'b', 'yellow', 'so so', 'do this'),
        Finding('two', 'c', 'red', 'bad\nworse', 'do that'),
    ]
    given = []
    parts = texts((given.append(finding) or finding for finding in findings), color=False)
    text = next(parts)
    assert given == findings[:1]  # said as soon as it is known
    text = '\n'.join([text, *parts])
    assert text.splitlines() == [
        'one',
        '  green  a: good',
        '  yellow b: so so',
        '         fix: do this',
        '',
        'two',
        '  red    c: bad',
        '           worse',
        '         fix: do that',
        '',
        '1 green, 1 yellow, 1 red',
    ]
    assert '\033' not in text
    assert '\033[31mred   \033[0m' in '\n'.join(texts(findings, color=True))
    read = json.loads(as_json(findings))
    assert {level: read[level] for level in LEVELS} == {'green': 1, 'yellow': 1, 'red': 1}
    assert read['findings'][1] == {
        'area': 'one',
        'name': 'b',
        'level': 'yellow',
        'found': 'so so',
        'fix': 'do this',
    }
