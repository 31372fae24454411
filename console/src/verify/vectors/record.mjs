/** Records model calls of a running `waybill dev` as test vectors: node record.mjs http://127.0.0.1:7070 demo TURN… > calls.json */
const [base, project, ...turns] = process.argv.slice(2)
const read = (path, init) => fetch(`${base}/v1/projects/${project}/${path}`, init)
const json = async (path, init) => (await read(path, init)).json()
const named = r => [
  ...[r.system_prompt_card_id, r.tools_card_id, r.session_summary_card_id].filter(Boolean),
  ...r.blocks.map(block => block.card_id),
  ...r.query_card_ids,
]

const calls = []
for (const turn of turns) {
  for (const { step_id } of await json(`turns/${turn}/receipts`)) {
    const { receipt, messages } = await json(`turns/${turn}/context?bodies=false&step_id=${step_id}`)
    const request = await (await read(`turns/${turn}/context/request?step_id=${step_id}`)).text()
    const headers = { 'content-type': 'application/json' }
    const body = JSON.stringify({ card_ids: named(receipt) })
    const { found } = await json('cards/batch', { method: 'POST', headers, body })
    const boxes = {}
    for (const { box_id, upto } of [...receipt.history, receipt.output]) {
      if (upto > 0) boxes[box_id] = (await json(`boxes/${box_id}/cards?most=1000`)).items
    }
    const sources = messages.flatMap(message => message.sources.map(one => [one.card_id, one.hash]))
    calls.push({ turn, step_id, receipt, request, cards: found, boxes, sources })
  }
}
console.log(`[\n${calls.map(call => JSON.stringify(call)).join(',\n')}\n]`)
