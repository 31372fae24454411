/** Whether what a page shows stands in the request. The server renders messages once more for the screen, so that alone says nothing. */
import type { Schemas } from '../api'
import { canonical } from './canonical'
import { type Element, joined, type Part, type Said, type Tool } from './said'

type Message = Schemas['SeenMessage']
type Call = Schemas['ToolCall']

export type Stands =
  /** At its place: who speaks, the text and the calls are the same. */
  | 'here'
  /** The text of the request stands in it, but it also has parts that pages only name, such as an image: those are not compared. */
  | 'partly'
  /** Each of its texts and calls is somewhere in the request, said by the same role. */
  | 'somewhere'
  /** It has nothing that could be looked for. */
  | 'nothing'
  | 'not'

export interface Standing {
  stands: Stands
  /** The reasoning that is shown was not sent like this. */
  isThoughtUnsent: boolean
}

/** Shows an escape of the store as it was sent: `␛␛` is one, `␛0000` and half a character are U+FFFD. As `legible` in crates/core/src/json.rs. */
const legible = (text: string) =>
  text.replace(/␛(␛|0000|D[89A-F][0-9A-F]{2})?/g, (_, after) => (after === undefined || after === '␛' ? '␛' : '\ufffd'))
const wellFormed = (text: string) => text.replace(/\p{Cs}/gu, '\ufffd')

/** Compares a text of the record with one that was sent. */
export function isSame(stored: string, sent: string): boolean {
  if (stored === sent) return true
  if (stored.includes('␛') && legible(stored) === sent) return true
  return /\p{Cs}/u.test(sent) && stored === wellFormed(sent)
}

/** The name under which a tool is sent: providers accept few characters. As `legal` in crates/context/src/wire/mod.rs. */
function legal(name: string): string {
  if (/^[\w-]{1,64}$/.test(name)) return name
  const sent = [...name].map(one => (/[\w-]/.test(one) ? one : '_'))
  return sent.slice(0, 64).join('') || '_'
}

function jsonOf(text: string): string | null {
  try {
    return canonical(JSON.parse(text))
  } catch {
    return null
  }
}

function isSameCall(call: Call, part: Part): boolean {
  if (part.kind !== 'call') return false
  if (part.name !== call.tool_name && part.name !== legal(call.tool_name)) return false
  if (!part.ids!.some(id => id === call.tool_call_id || id === call.provider_call_id)) return false
  if (part.text !== null) return isSame(call.arguments, part.text)
  return [call.arguments, legible(call.arguments)].some(text => {
    // What is no object is sent inside of one.
    return part.json === jsonOf(text) || part.json === canonical({ INVALID_JSON: text })
  })
}

/** Compares what is said with the parts of an element. `partly`: some of them are only named. */
function saysTheSame(text: string, lines: (string | null)[]): 'here' | 'partly' | 'not' {
  const known = lines.filter(line => line !== null)
  if (known.length === lines.length) {
    return isSame(text, known.length === 1 ? known[0]! : joined(known)) ? 'here' : 'not'
  }
  let at = 0
  for (const line of known) {
    const found = text.indexOf(wellFormed(line), at)
    if (found < 0) return 'not'
    at = found + line.length
  }
  return 'partly'
}

/** Compares reasoning with the parts of its element. */
function isSameThought(thought: Schemas['SeenReasoning'], parts: Part[]): boolean {
  const texts = parts.map(part => part.text ?? '')
  const isRead = ['\n', '\n\n', ''].some(between => isSame(thought.text, texts.join(between)))
  // The readable part of it is what was sent, or stands in the blocks that were.
  if (thought.verbatim == null) return isRead
  const blocks = blocksOf(thought.verbatim) ?? blocksOf(legible(thought.verbatim))
  const isSent = blocks !== null && blocks.length === parts.length && blocks.every((one, n) => one === parts[n]!.json)
  return isSent && (isRead || isSame(thought.text, readableOf(blocks!)))
}

function blocksOf(text: string): string[] | null {
  try {
    const blocks: unknown = JSON.parse(text)
    return Array.isArray(blocks) ? blocks.map(canonical) : null
  } catch {
    return null
  }
}

/** What the worker took from the blocks for people to read. Blocks of Anthropic's that are sealed have no text. */
function readableOf(blocks: string[]): string {
  const texts = blocks.flatMap(one => {
    const { thinking, summary } = JSON.parse(one) as { thinking?: string; summary?: { text?: string }[] }
    return Array.isArray(summary) ? summary.map(part => part?.text ?? '') : [thinking ?? '']
  })
  return texts.join('\n\n')
}

function atItsPlace(message: Message, element: Element, isRecorded: boolean): Standing {
  const not: Standing = { stands: 'not', isThoughtUnsent: false }
  if (!fitsElement(message, element)) return not
  const calls = message.tool_calls ?? []
  const sent = element.parts.filter(part => part.kind === 'call')
  if (calls.length !== sent.length || !calls.every((call, n) => isSameCall(call, sent[n]!))) return not
  const says = element.parts.filter(part => (part.kind === 'text' || part.kind === 'result') && !part.isBare)
  const lines = says.map(part => part.text)
  const stands = saysTheSame(message.content ?? '', lines)
  const thoughts = element.parts.filter(part => part.kind === 'thought')
  const thought = message.reasoning
  // What is only named may hold reasoning as well.
  if (thoughts.length > 0 || (isRecorded && thought && stands === 'here')) {
    if (!thought || !isSameThought(thought, thoughts)) return not
  }
  return { stands, isThoughtUnsent: thoughts.length === 0 && thought != null && thought.text !== '' }
}

/** Compares who speaks, and what is answered. */
function fitsElement({ role, tool_call_id }: Message, element: Element): boolean {
  if (element.role === null) return true
  const answered = element.parts.find(part => part.kind === 'result')?.ids ?? []
  return role === element.role && (tool_call_id ? answered.includes(tool_call_id) : answered.length === 0)
}

function anywhere(message: Message, parts: Part[], format: string): Standing {
  const { role, content, tool_call_id } = message
  const text = content ?? ''
  const calls = message.tool_calls ?? []
  // Results, and system text behind the first messages, belong to the user in Anthropic's format.
  const speaks = (part: Part) =>
    part.role === role || (format === 'anthropic_messages' && role === 'system' && part.role === 'user')
  const isSaid = tool_call_id
    ? parts.some(part => part.kind === 'result' && part.ids!.includes(tool_call_id) && isSame(text, part.text ?? ''))
    : text.trim() === '' || parts.some(part => part.kind === 'text' && speaks(part) && isSame(text, part.text ?? ''))
  const areCalled = calls.every(call => parts.some(part => isSameCall(call, part)))
  const isNothing = !tool_call_id && text.trim() === '' && calls.length === 0
  const thoughts = parts.filter(part => part.kind === 'thought')
  const thought = message.reasoning
  // It stands somewhere between those of other messages.
  const isThought =
    thought != null &&
    thoughts.some((_, from) => {
      const n = (thought.verbatim == null ? null : blocksOf(thought.verbatim)?.length) ?? 1
      return isSameThought(thought, thoughts.slice(from, from + n))
    })
  return {
    stands: !isSaid || !areCalled ? 'not' : isNothing ? 'nothing' : 'somewhere',
    isThoughtUnsent: thought != null && !isThought,
  }
}

/** Says whether a message, with its body, stands in the request. */
export function standing(message: Message, said: Said): Standing {
  if (said.elements === null) return anywhere(message, said.parts, said.format)
  const element = said.elements[message.n - 1]
  if (!element) return { stands: 'not', isThoughtUnsent: false }
  return atItsPlace(message, element, said.isRecorded)
}

/** Says whether a tool is the one at this place of the request. */
export function standsTool(
  shown: { tool_name?: string; description?: string; parameters?: unknown },
  sent: Tool | undefined,
): boolean {
  if (!sent || !isSame(shown.tool_name ?? '', sent.name ?? '')) return false
  if (!isSame(shown.description ?? '', sent.description ?? '')) return false
  return shown.parameters === undefined || isSame(canonical(shown.parameters), sent.parameters ?? '')
}

/** Compares the list of messages, without what they say, with the request: how many there are, and who speaks. */
export function fitsTogether(messages: Message[], nTools: number, said: Said): boolean {
  if (nTools !== said.tools.length) return false
  if (said.elements) {
    const { elements } = said
    return elements.length === messages.length && messages.every((message, n) => fitsElement(message, elements[n]!))
  }
  const answered = said.parts.filter(part => part.kind === 'result').map(part => part.ids![0])
  const answers = messages.filter(message => message.tool_call_id).map(message => message.tool_call_id)
  if (answered.length !== answers.length || !answers.every((id, n) => id === answered[n])) return false
  return said.format === 'anthropic_messages' ? alternate(messages, said.roles) : follow(messages, said.roles)
}

/** Anthropic's roles alternate: neighbours are joined, and the user begins and ends. */
function alternate(messages: Message[], sent: (string | null)[]): boolean {
  const first = messages.findIndex(message => message.role !== 'system')
  const wanted: string[] = []
  for (const { role } of first < 0 ? [] : messages.slice(first)) {
    const name = role === 'assistant' ? 'assistant' : 'user'
    if (wanted.length === 0 && name === 'assistant') wanted.push('user')
    if (wanted.at(-1) !== name) wanted.push(name)
  }
  if (wanted.at(-1) === 'assistant') wanted.push('user')
  return wanted.length === sent.length && wanted.every((role, n) => role === sent[n])
}

/** In Responses' format messages that say nothing are not sent: those that are follow each other as they do in the list. */
function follow(messages: Message[], sent: (string | null)[]): boolean {
  const said = sent.filter(role => role !== null)
  const may = messages.filter(message => !message.tool_call_id && message.chars > 0)
  let next = 0
  for (const { role } of may) if (said[next] === role) next += 1
  return next === said.length
}
