# SPDX-License-Identifier: Apache-2.0
"""Print the failed tests and the total of a test run. Exit with 1 if the run failed.

usage: test_total.py CHECK TESTS SECONDS REPORT...

CHECK and TESTS are the exit codes of scripts/check and of pytest. A REPORT is pytest's JUnit file.
"""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def main(check, tests, seconds, *reports):
    total = dict.fromkeys(('tests', 'failures', 'errors', 'skipped'), 0)
    failed = {}
    missing = [report for report in reports if not Path(report).is_file()]
    for report in set(reports) - set(missing):
        root = ElementTree.parse(report).getroot()
        for suite in root.iter('testsuite'):
            for name in total:
                total[name] += int(suite.get(name, 0))
        for case in root.iter('testcase'):
            if case.find('failure') is not None or case.find('error') is not None:
                module, dot, group = case.get('classname', '').partition('.Test')
                module = module.removeprefix('trt_perception.')  # colcon's prefix
                group = f'Test{group}::' if dot else ''
                failed[f'{module.replace(".", "/")}.py::{group}{case.get("name")}'] = None

    if check:
        print('scripts/test: scripts/check found something, see above')
    if missing:
        print('scripts/test: pytest ended without a report, see above')
    elif not total['tests']:
        print('scripts/test: no test ran; expected at least one')
    elif tests and not failed:
        print('scripts/test: no test failed, but pytest or coverage found something, see above')
    for name in sorted(failed):
        print(f'FAILED {name}')
    total['passed'] = total.pop('tests') - sum(total.values())
    parts = [f'{total.pop("passed")} passed']
    parts += [f'{count} {name}' for name, count in total.items() if count]
    print(', '.join(parts).replace('failures', 'failed'), f'in {seconds} s')
    return int(bool(check or tests or missing or failed or parts == ['0 passed']))


if __name__ == '__main__':
    sys.exit(main(*map(int, sys.argv[1:4]), *sys.argv[4:]))
