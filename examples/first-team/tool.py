"""The tool `stock`: claims calls over HTTP and answers them. It needs only the standard library."""

import json, os, pathlib, random, time, urllib.request, uuid

STOCK = {"apples": 12, "pears": 5, "plums": 0}


def stock(question):
    """The work itself: put your own code here, and its arguments into team.yaml."""
    found = [f"{n} {fruit}" for fruit, n in STOCK.items() if fruit in question.lower()]
    return f"in stock: {', '.join(found)}" if found else f"the list has only {', '.join(STOCK)}"


def post(path, body):
    here = pathlib.Path.cwd()
    ready = next(file for folder in [here, *here.parents] if (file := folder / ".waybill/ready.json").exists())
    url, key = json.loads(ready.read_text())["url"], os.environ.get("WAYBILL_API_KEY")
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(f"{url}/v1/projects/demo/{path}", json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request, timeout=60))


def answer(call, me):
    try:
        status, result = "success", stock(**json.loads(call["arguments"]))
    except Exception as error:  # the model reads this, and may call again
        status, result = "failed", repr(error)
    bits = time.time_ns() // 1_000_000 << 80 | 7 << 76 | random.getrandbits(12) << 64 | 2 << 62 | random.getrandbits(62)
    report = {"claim_token": call["claim_token"], "card_id": str(uuid.UUID(int=bits)), "status": status, "result": result}
    print(call["arguments"], "->", result, post(f"calls/{call['tool_call_id']}/report", me | report)["outcome"], flush=True)


while __name__ == "__main__":
    try:
        me = {"worker": str(uuid.uuid4())}  # a new name for each claim, so that none is used after its lease has ended
        for call in post("calls/claim", me | {"target": "stock", "wait_seconds": 20, "lease_seconds": 60})["calls"]:
            answer(call, me)
    except (OSError, StopIteration) as error:
        print("is `waybill dev` running?", repr(error), flush=True)
        time.sleep(1)
