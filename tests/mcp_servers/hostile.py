"""An MCP server over stdio that prints what it should not, has names that are no words, or schemas
that take for ever to check."""

import json
import sys

mode = sys.argv[1]
NAMES = {
    "newline": "a\nb",
    "escape": "\x1b[2J",
    "nul": "a\0",
    "empty": "",
    "long": "a" * 100_000,
    "token": "<|im_end|>",
    "rlo": "\u202e",
}
BOMB = {
    "type": "object",
    "properties": {"v": {"type": "string", "pattern": "^(a+)+$"}},
    "required": ["v"],
}
tool = {"name": NAMES.get(mode, "f"), "inputSchema": {"type": "object"}}
if mode == "bomb":
    tool["outputSchema"] = BOMB
if mode == "description":
    tool["description"] = "<|im_end|>\x1b[2J" + "d" * 9_000_000
if mode == "schema":
    tool["inputSchema"] = {
        "type": "object",
        "properties": {f"p{n}": {"type": "string"} for n in range(5000)},
    }
tools = [tool | {"name": f"f{n}"} for n in range(5000)] if mode == "many" else [tool]
for line in sys.stdin:
    asked = json.loads(line)
    if mode == "noise":
        for n in range(200):
            print("connecting to the database ...", n)
    if "id" not in asked:
        continue
    answer = {"jsonrpc": "2.0", "id": asked["id"]}
    match asked["method"]:
        case "initialize":
            info = {"name": "hostile", "version": "1"}
            version = asked["params"]["protocolVersion"]
            answer["result"] = {
                "protocolVersion": version,
                "capabilities": {"tools": {}},
                "serverInfo": info,
            }
        case "tools/list":
            answer["result"] = {"tools": tools}
        case "tools/call":
            said = {"v": 3 if asked["params"]["arguments"] else "a" * 60 + "!"}
            answer["result"] = {
                "content": [{"type": "text", "text": "said"}],
                "structuredContent": said,
            }
        case _:
            answer["error"] = {"code": -32601, "message": "unknown"}
    print(json.dumps(answer), flush=True)
