#!/usr/bin/env python3
"""The tool `run_iteration`: runs the samples of a design, and stores everything before it says a word about it.

It stands for a real harness: 27 samples, some of which fail, fewer each time. It knows nothing of Waybill but HTTP: it claims calls, puts artifacts,
and answers with a package. What it stores follows from the call alone, so whoever does it again after a crash stores the same.
"""

import argparse
import json
import os
import sys
import urllib.parse
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python-worker"))
from worker import Api, Lease, Lost, Refused, say, uuid7  # noqa: E402

SAMPLES = 27
FAILURES = [18, 7, 2, 1]
CHECKER = "leave_balance_deducted"


def put(api, path, content):
    query = urllib.parse.urlencode({"path": path})
    headers = api.headers | {"Content-Type": "application/octet-stream"}
    request = urllib.request.Request(f"{api.base}/artifacts?{query}", content.encode(), headers, method="PUT")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def pretty(value):
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"


def iteration_of(api, scenario, call):
    """Which iteration a call is: the one it has begun before, else the next."""
    folder, after, known = f"scenarios/{scenario}/execution_outputs/", "", {}
    while after is not None:
        page = api.get("artifacts?" + urllib.parse.urlencode({"prefix": folder, "after": after, "most": 1000}))
        for item in page["items"]:
            name, rest = item["path"].removeprefix(folder).split("/", 1)
            if rest.startswith("begun_by_"):
                known[rest.removeprefix("begun_by_")] = int(name.removeprefix("iteration_"))
        after = page["next"]
    return known.get(call) or max(known.values(), default=0) + 1


def conversation(sample, failed):
    turns = [{"role": "user", "content": f"{sample}: I want to take {3 + n % 5} days off, please." if n == 0 else f"And detail {n}?"} for n in range(7)]
    turns.insert(3, {"role": "assistant", "content": "I file the application.", "tool_calls": [{"name": "create_leave_application"}]})
    turns.insert(4, {"role": "tool", "content": "application created"})
    if failed:
        turns.append({"role": "tool", "content": "error: the balance is 10.0 days, as before", "status": "failed"})
    turns.append({"role": "assistant", "content": "Your leave is filed."})
    return turns


def run(api, call):
    scenario = json.loads(call["arguments"])["scenario"]
    n = iteration_of(api, scenario, call["tool_call_id"])
    folder = f"scenarios/{scenario}/execution_outputs/iteration_{n}"
    put(api, f"{folder}/begun_by_{call['tool_call_id']}", "")
    failing = FAILURES[min(n, len(FAILURES)) - 1]
    index = []
    for number in range(1, SAMPLES + 1):
        sample, failed = f"BS_MT_{number:03}", number <= failing
        paths = {"sample_path": f"samples/{sample}.json", "trace_path": f"execution_traces/{sample}_trace.json",
                 "evaluation_path": f"evaluation_results/{sample}_eval.json"}
        put(api, f"{folder}/{paths['sample_path']}", pretty({"sample_id": sample, "task": "请假申请", "days": 3 + number % 5}))
        put(api, f"{folder}/{paths['trace_path']}", pretty({"sample_id": sample, "conversation_history": conversation(sample, failed)}))
        put(api, f"{folder}/{paths['evaluation_path']}", pretty({"sample_id": sample, "checkers": {CHECKER: not failed}}))
        if failed:
            paths["attribution_path"] = f"attribution_analysis/{sample}_attribution.json"
            put(api, f"{folder}/{paths['attribution_path']}", pretty({"sample_id": sample, "layer": 1, "rule": "余额扣减时机未明确"}))
            priority = "high" if number <= failing / 2 else "medium" if number < failing else "low"
            index.append({"sample_id": sample} | paths | {"failure_type": "Layer1_BusinessRule", "conversation_turns": 8 + failed,
                                                          "checkers_failed": [CHECKER], "priority": priority})
    affected = [entry["sample_id"] for entry in index]
    put(api, f"{folder}/failure_summary.json", pretty({"failed": affected, "of": SAMPLES}))
    put(api, f"{folder}/layer1_problems_report.json", pretty({
        "report_version": "1.0", "generated_at": "2026-01-04T15:30:00", "iteration": n, "total_samples": SAMPLES,
        "failed_samples": failing, "failure_rate": round(failing / SAMPLES, 2),
        "layer1_problems": [{
            "problem_id": "L1P_001", "problem_type": "BusinessRule_Unclear", "severity": "critical", "title": "余额扣减时机未明确",
            "description": "BusinessRules.md 未明确说明余额必须在创建申请时同步扣减", "affected_samples": affected,
            "affected_count": failing, "evidence_summary": f"{failing}个case中Agent都创建了申请但未扣减余额", "typical_case_id": affected[0],
            "suggested_fix": {"target": "BusinessRules.md", "section": "# 请假申请流程",
                              "modification": "在步骤2后添加：必须立即调用 update_employee_leave_balance 扣减余额",
                              "rationale": "明确业务规则，避免Agent遗漏关键操作"},
        }],
        "modification_priority": [{"priority": 1, "problem_id": "L1P_001", "impact": f"解决{failing}个失败case",
                                   "estimated_improvement": f"+{100 * failing // SAMPLES}%"}],
    }))
    return {
        "version": "2.0", "handoff_type": "execute_to_init", "timestamp": "2026-01-04T15:30:00", "execution_output_dir": folder,
        "trigger_reason": f"Critical问题占比{100 * failing // SAMPLES}%，自动修复无效",
        "iteration_summary": {"total_iterations": n, "final_quality": round(1 - failing / SAMPLES, 2), "total_samples": SAMPLES,
                              "failed_samples": failing},
        "failure_samples_index": index, "layer1_problems_report_path": "layer1_problems_report.json",
        "modification_suggestions_summary": [
            "在BusinessRules明确添加：创建请假申请后必须调用update_employee_leave_balance扣减余额",
            "将leave_balance_deducted checker改为容忍0.01天的浮点误差", "在BusinessRules中明确跨年度请假的余额计算规则"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="The key is read from WAYBILL_API_KEY.")
    parser.add_argument("--url", default=os.environ.get("WAYBILL_API_URL", "http://127.0.0.1:7070"))
    parser.add_argument("--project", default=os.environ.get("WAYBILL_PROJECT") or "demo")
    options = parser.parse_args()
    api = Api(options.url, os.environ.get("WAYBILL_API_KEY"), options.project)
    say("waiting for designs")
    while True:
        lease = Lease(api, 10)
        try:
            while True:
                for call in lease.claim("calls/claim", "calls", "evaluator"):
                    result = run(api, call)
                    report = lease.me | {"claim_token": call["claim_token"], "card_id": uuid7(), "status": "success", "result": result}
                    api.post(f"calls/{call['tool_call_id']}/report", report)
                    say(f"{result['execution_output_dir']}: {len(result['failure_samples_index'])} of {SAMPLES} failed")
        except (Lost, OSError) as trouble:
            say(f"under another name: {trouble!r}")
        except Refused as refused:
            sys.exit(str(refused))
        finally:
            lease.leave()


if __name__ == "__main__":
    main()
