"""What does the self-test of a daemon's engines find? Starts a daemon; the last line is JSON."""

import argparse
import json

from scripts.bench.daemon import report, start_daemon


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", required=True)
    with start_daemon(pair=parser.parse_args().pair) as daemon:
        status = json.loads(daemon.run_cli("ps", "--json").stdout)
    report(self_test=status["self_test"], engines=status["engines"])


if __name__ == "__main__":
    main()
