"""An MCP server over stdio that begins late, and breaks the protocol with its first call."""

import json
import sys
import time

time.sleep(2.5)
broken = False
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    answer = {"jsonrpc": "2.0", "id": asked["id"]}
    match asked["method"]:
        case "initialize":
            info = {"name": "raw", "version": "1"}
            version = asked["params"]["protocolVersion"]
            answer["result"] = {
                "protocolVersion": version,
                "capabilities": {"tools": {}},
                "serverInfo": info,
            }
        case "tools/list":
            answer["result"] = {
                "tools": 3 if broken else [{"name": "f", "inputSchema": {"type": "object"}}]
            }
        case "tools/call":
            broken = True
            answer["result"] = {"content": "no"}
        case _:
            answer["error"] = {"code": -32601, "message": "unknown"}
    print(json.dumps(answer), flush=True)
