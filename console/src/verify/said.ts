/** What a request says, read from its own bytes: who speaks, what is said, which tools are called. Nothing of it comes from elsewhere. */
import type { Schemas } from '../api'
import { canonical } from './canonical'
import type { Receipt } from './hash'

/** A stretch of a request that says one thing. */
export interface Part {
  /** The name that the record has for the role. Null: it cannot be told. */
  role: Schemas['Role'] | null
  kind: 'text' | 'result' | 'call' | 'thought'
  /** Null: an image, a file or something unknown, which pages only name. */
  text: string | null
  /** A result without any content. */
  isBare?: boolean
  /** Of a call and a result: the ids that the record may have for the call. */
  ids?: string[]
  /** Of a call: the name of the tool. */
  name?: string
  /** Of a call whose arguments are JSON, of reasoning that is sent back as it came: its canonical form. */
  json?: string
}

/** One element of the list of messages. */
export interface Element {
  role: Part['role']
  parts: Part[]
}

export interface Tool {
  name: string | null
  description: string | null
  /** The canonical form of the schema. */
  parameters: string | null
}

export interface Said {
  format: string
  /** The call was recorded from an agent elsewhere. */
  isRecorded: boolean
  /** For each message of the record its element. Null if the format joins or splits messages. */
  elements: Element[] | null
  /** All parts of the request, in order. */
  parts: Part[]
  /** Who speaks in each element of the list, as the provider calls it. */
  roles: (string | null)[]
  tools: Tool[]
}

type Fields = Record<string, unknown>

const isFields = (value: unknown): value is Fields =>
  typeof value === 'object' && value !== null && !Array.isArray(value)
const textOf = (value: unknown) => (typeof value === 'string' ? value : null)
const listOf = (value: unknown): unknown[] => (Array.isArray(value) ? value : [])

const roles: Record<string, Schemas['Role']> = {
  system: 'system',
  developer: 'system',
  user: 'user',
  assistant: 'assistant',
  tool: 'tool',
  function: 'tool',
}
const textKinds = ['text', 'input_text', 'output_text', 'summary_text', 'reasoning_text']

/**
 * Reads a request. `idOf` returns the id that the record gives to a call that only the provider has named. Null if the format is unknown, or the
 * bytes are not JSON.
 */
export function readSaid(bytes: Uint8Array, receipt: Receipt, idOf: (named: string) => string): Said | null {
  let request: unknown
  try {
    request = JSON.parse(new TextDecoder().decode(bytes))
  } catch {
    return null
  }
  if (!isFields(request)) return null
  const format = receipt.adapter
  const isRecorded = receipt.recorded != null
  const idsOf = (id: unknown) => {
    const named = textOf(id) ?? ''
    return isRecorded ? [idOf(named), named] : [named]
  }
  const isResponses = format === 'openai_responses'
  if (!isResponses && format !== 'openai_chat' && format !== 'anthropic_messages') return null
  const list = isResponses ? request.input : request.messages
  const said = (typeof list === 'string' ? [list] : listOf(list)).map(one => {
    const element = elementOf(one, isResponses, idsOf)
    // The record shows an element that says nothing at all as the JSON that it is.
    return isRecorded && element.parts.length === 0 ? unreadable : element
  })
  const system = isResponses ? request.instructions : format === 'anthropic_messages' ? request.system : undefined
  const before: Element[] = system == null ? [] : [{ role: 'system', parts: content(system, 'system') }]
  const isOneEach = isRecorded || format === 'openai_chat'
  return {
    format,
    isRecorded,
    elements: isOneEach ? [...before, ...said] : null,
    parts: [...before, ...said].flatMap(element => element.parts),
    roles: listOf(list).map(one => (isFields(one) ? textOf(one.role) : null)),
    tools: listOf(request.tools).map(toolOf),
  }
}

function toolOf(value: unknown): Tool {
  const tool = isFields(value) ? value : {}
  const inner = isFields(tool.function) ? tool.function : tool
  const parameters = inner.parameters ?? inner.input_schema
  return {
    name: textOf(inner.name),
    description: textOf(inner.description),
    parameters: parameters === undefined ? null : canonical(parameters),
  }
}

type IdsOf = (id: unknown) => string[]
const unreadable: Element = { role: null, parts: [{ role: null, kind: 'text', text: null }] }

function elementOf(value: unknown, isResponses: boolean, idsOf: IdsOf): Element {
  if (typeof value === 'string') return { role: 'user', parts: [{ role: 'user', kind: 'text', text: value }] }
  if (!isFields(value)) return unreadable
  const kind = textOf(value.type)
  if (!isResponses || kind === null || kind === 'message') return messageOf(value, idsOf) ?? unreadable
  switch (kind) {
    case 'function_call':
    case 'custom_tool_call':
      return { role: 'assistant', parts: [callOf(value.call_id, value, idsOf)] }
    case 'function_call_output':
    case 'custom_tool_call_output':
      return { role: 'tool', parts: resultOf(value.call_id, value.output, 'tool', idsOf) }
    case 'reasoning': {
      const texts = [...content(value.summary ?? [], null), ...content(value.content ?? [], null)].map(
        part => part.text,
      )
      const text = joined(texts.filter(text => text !== null))
      const isSealed = text === '' && value.encrypted_content != null
      const thought = isSealed ? '[encrypted]' : text
      return {
        role: 'assistant',
        parts: [{ role: 'assistant', kind: 'thought', text: thought, json: canonical(value) }],
      }
    }
    default:
      return unreadable
  }
}

function messageOf(value: Fields, idsOf: IdsOf): Element | null {
  const said = roles[textOf(value.role) ?? '']
  if (said === undefined) return null
  const parts: Part[] = []
  const thoughts: Part[] = []
  const think = (text: string, json?: string) =>
    thoughts.push({ role: 'assistant', kind: 'thought', text, ...(json === undefined ? {} : { json }) })
  const blocks = listOf(value.content)
  let answered = 0
  // Chat completions name the call of a result beside its content.
  if (value.tool_call_id != null) {
    parts.push(...resultOf(value.tool_call_id, value.content ?? [], said, idsOf))
  } else if (Array.isArray(value.content)) {
    for (const block of blocks) {
      const kind = isFields(block) ? textOf(block.type) : null
      if (isFields(block) && kind === 'thinking') think(textOf(block.thinking) ?? '', canonical(block))
      else if (isFields(block) && kind === 'redacted_thinking') think('[redacted_thinking]', canonical(block))
      else if (isFields(block) && kind === 'tool_use') parts.push(callOf(block.id, block, idsOf))
      else if (isFields(block) && kind === 'tool_result') {
        answered += 1
        parts.push(...resultOf(block.tool_use_id, block.content ?? [], said, idsOf))
      } else parts.push(...content([block], said))
    }
  } else if (value.content != null) parts.push(...content(value.content, said))
  if (typeof value.refusal === 'string') parts.push({ role: said, kind: 'text', text: value.refusal })
  const thought = textOf(value.reasoning_content) ?? textOf(value.reasoning)
  if (thought !== null) think(thought)
  for (const call of listOf(value.tool_calls)) {
    const inner = isFields(call) ? (call.function ?? call.custom) : null
    if (isFields(call) && isFields(inner)) parts.push(callOf(call.id, inner, idsOf))
    else parts.push({ role: said, kind: 'text', text: null })
  }
  if (isFields(value.function_call)) parts.push(callOf('', value.function_call, idsOf))
  // Anthropic's results are a user's message.
  const role = said === 'user' && blocks.length > 0 && answered === blocks.length ? 'tool' : said
  return { role, parts: [...thoughts, ...parts] }
}

function resultOf(id: unknown, value: unknown, role: Part['role'], idsOf: IdsOf): Part[] {
  const texts = content(value, role)
  const [first] = texts
  const ids = idsOf(id)
  // A result that says nothing is one all the same.
  if (!first) return [{ role, kind: 'result', text: '', ids, isBare: true }]
  return [{ role, kind: 'result', text: first.text, ids }, ...texts.slice(1)]
}

function callOf(id: unknown, value: Fields, idsOf: IdsOf): Part {
  const input = value.arguments ?? value.input ?? ''
  const isText = typeof input === 'string'
  return {
    role: 'assistant',
    kind: 'call',
    text: isText ? input : null,
    ids: idsOf(id),
    name: textOf(value.name) ?? '',
    ...(isText ? {} : { json: canonical(input) }),
  }
}

/** The texts of a content: a string, or a list of parts. */
function content(value: unknown, role: Part['role']): Part[] {
  const part = (text: string | null): Part => ({ role, kind: 'text', text })
  if (typeof value === 'string') return [part(value)]
  if (!Array.isArray(value)) return [part(null)]
  return value.map(one => {
    if (typeof one === 'string') return part(one)
    if (!isFields(one)) return part(null)
    const kind = textOf(one.type) ?? ''
    if (textKinds.includes(kind)) return part(textOf(one.text))
    return part(kind === 'refusal' ? textOf(one.refusal) : null)
  })
}

/** Joins lines as the record does: nothing stands before the first one that is not empty. */
export function joined(lines: string[]): string {
  const from = lines.findIndex(line => line !== '')
  return from < 0 ? '' : lines.slice(from).join('\n')
}
