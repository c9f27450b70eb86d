#!/usr/bin/env python3
"""Speak 20 sentences with espeak-ng, as data for models of speech.

usage: make_speech.py DIRECTORY        (needs the programs espeak-ng and sox)

writes DIRECTORY/00.wav .. 19.wav      16 kHz, one channel
       DIRECTORY/speech.jsonl          {"audio": .., "target": ..} in each line
"""

import json
import pathlib
import subprocess
import sys

SENTENCES = """
The train to the city leaves at seven in the morning.
She opened the window because the room was too warm.
We bought bread, cheese and two bottles of milk.
The children played in the garden until it was dark.
Please send me the report before the end of the week.
My brother works in a small office near the river.
The weather was cold, but the sun was shining.
He read the letter twice and put it in his pocket.
There are three new houses on the other side of the street.
I would like a cup of coffee and a glass of water.
The doctor told him to stay in bed for a few days.
They walked along the beach and looked at the ships.
The museum is open every day except on Monday.
Her father taught history at a school in the north.
You can leave your coat on the chair by the door.
The old bridge was closed after the heavy rain.
We waited for an hour, and then the bus arrived.
The cat slept on the roof of the garage.
Most people in the village know each other.
He turned off the light and closed his eyes.
""".strip().splitlines()


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for index, text in enumerate(SENTENCES):
        spoken = subprocess.run(["espeak-ng", "-v", "en-us", "-s", "140", "--stdout", text], check=True, capture_output=True)
        # Without dither, every run gives the same bytes.
        convert = ["sox", "-D", "-t", "wav", "-", "-r", "16000", "-c", "1", "-b", "16", str(folder / f"{index:02}.wav")]
        subprocess.run(convert, input=spoken.stdout, check=True, capture_output=True)
        lines.append(json.dumps({"audio": f"{index:02}.wav", "target": text}) + "\n")
    (folder / "speech.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    main()
