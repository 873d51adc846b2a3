"""Keeps a day's requests in memory, and answers three questions about them: what `make demo` runs. It does not adapt to how
much memory there is; few programs do."""

import hashlib

REQUESTS = 600_000
WORDS = "the quick brown fox jumps over the lazy dog and runs into the dark wood, or so it hopes; " * 6

requests = [
    f"{number:09d} user{number * 7919 % 1000:03d} {number * 31 % 977:3d} ms {WORDS[number % 83:number % 83 + 380]}"
    for number in range(REQUESTS)
]
bytes_by_user = {}
for request in requests:
    user = request[10:17]
    bytes_by_user[user] = bytes_by_user.get(user, 0) + len(request)
slowest = max(requests, key=lambda request: int(request[18:21]))
everything = hashlib.sha256()
for request in requests:
    everything.update(request.encode())
print(len(bytes_by_user), max(bytes_by_user.values()), slowest[:24], everything.hexdigest())
