#!/usr/bin/env python3
"""Makes data/*.jsonl from the earthquake catalogue in the npm package vega-datasets.

    npm pack vega-datasets@3.2.1
    python3 make_data.py vega-datasets-3.2.1.tgz

One flat JSON object per event, in the order in which the events were last updated (then by id), one file per
day (UTC) of that update. Numbers keep the digits that the catalogue has: they are copied as text and never
pass through a binary float. Standard library only; the result is the same bytes every time.
"""

import hashlib
import json
import pathlib
import sys
import tarfile
from datetime import datetime, timezone

# sha256 of the package vega-datasets 3.2.1, and of data/earthquakes.json in it.
PACKAGE = "6f72fda460a9863fae5fcb32f85bcd49e1761fdea6dc6cf9f4962472881cc5a3"
MEMBER = "a42702a83ffbae679f95d1fa53e2cae0bae13b21e599a68cdd50a44fc52129f7"
FEATURES = 1707

# The policy of restitch.toml, for the table that is printed at the end.
HOUR_MS = 3_600_000
WATERMARK_DELAY, ALLOWED_LATENESS, REPAIR_WINDOW = 1 * HOUR_MS, 6 * HOUR_MS, 72 * HOUR_MS


class Digits(str):
    """A number as the catalogue writes it."""


def checked(data, sha256, name):
    if hashlib.sha256(data).hexdigest() != sha256:
        sys.exit(f"{name}: sha256 is {hashlib.sha256(data).hexdigest()}, expected {sha256}")
    return data


def flat(feature):
    p = feature["properties"]
    longitude, latitude, depth_km = feature["geometry"]["coordinates"]
    return {
        "id": feature["id"],
        "time": p["time"],
        "updated": p["updated"],
        "magnitude": p["mag"],
        "magnitude_type": p["magType"],
        "depth_km": depth_km,
        "longitude": longitude,
        "latitude": latitude,
        "place": p["place"],
        "type": p["type"],
        "status": p["status"],
        "network": p["net"],
        "felt": p["felt"],
        "significance": p["sig"],
    }


def line(record):
    def value(v):
        return v if isinstance(v, Digits) else json.dumps(v, ensure_ascii=False)

    return "{" + ",".join(f"{json.dumps(k)}:{value(v)}" for k, v in record.items()) + "}\n"


def utc(ms):
    return datetime.fromtimestamp(ms // 1000, timezone.utc)


def main(package):
    checked(pathlib.Path(package).read_bytes(), PACKAGE, package)
    with tarfile.open(package) as tar:
        text = checked(tar.extractfile("package/data/earthquakes.json").read(), MEMBER, "earthquakes.json")
    features = json.loads(text, parse_int=Digits, parse_float=Digits)["features"]
    records = sorted(map(flat, features), key=lambda r: (int(r["updated"]), r["id"]))
    assert len(records) == FEATURES and len({r["id"] for r in records}) == FEATURES, "each id occurs once"

    files = {}
    for r in records:
        files.setdefault(utc(int(r["updated"])).date().isoformat(), []).append(r)
    out = pathlib.Path(__file__).parent / "data"
    out.mkdir(exist_ok=True)
    watermark = None
    print("file                      records  on time  repair  approval  watermark before the file")
    for day, rows in files.items():
        name = f"updated-{day}.jsonl"
        (out / name).write_bytes("".join(map(line, rows)).encode())
        times = [int(r["time"]) for r in rows]
        late = approval = 0
        if watermark is not None:
            late = sum(t < watermark - ALLOWED_LATENESS for t in times)
            approval = sum(t < watermark - REPAIR_WINDOW for t in times)
        before = "none" if watermark is None else utc(watermark).strftime("%Y-%m-%dT%H:%M:%SZ")
        print(f"{name:25} {len(rows):7} {len(rows) - late:8} {late - approval:7} {approval:9}  {before}")
        watermark = max(watermark or 0, max(times) - WATERMARK_DELAY)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
