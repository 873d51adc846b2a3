#!/bin/sh
# Pictures of the pages about runs, into docs/img: web.png as `overspill metrics` shows a run that goes on, report.png as --report
# leaves it. Takes chromium, python3, and the quick build.
set -eu
cd "$(dirname "$0")/.."
overspill=$PWD/target/quick/overspill
[ -x "$overspill" ] || { echo "there is no $overspill: make program" >&2; exit 1; }
work=$(mktemp -d)
run=
trap 'kill $run 2>/dev/null || true; rm -rf "$work"' EXIT
program='import random, time
data = bytearray(200 << 20)
for page in range(0, len(data), 4096): data[page] = 1
begun = time.time()
while time.time() - begun < 25:
    part = random.choice((48, 64, 200)) << 20
    for _ in range(20_000): data[random.randrange(part)] ^= 1'
shoot() {
    chromium --headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update --disable-sync \
        --user-data-dir="$work/profile" --window-size="$2" --screenshot="docs/img/$1" "$3" >/dev/null 2>&1
}
"$overspill" run --memory 64M --plan --report "$work/report.html" --metrics 127.0.0.1:0 -- python3 -c "$program" 2>"$work/said" &
run=$!
sleep 15
address=$(sed -n 's|.*serving \(http://[^ ]*\) .*|\1|p' "$work/said")
shoot web.png 900,1000 "${address}run/$run"
wait $run
shoot report.png 900,1150 "file://$work/report.html"
