/** The one event stream of this tab. Browsers open few connections to a host, and each watcher takes a place at the server. */
import { useQueryClient } from '@tanstack/react-query'
import { useEffect, useEffectEvent, useSyncExternalStore } from 'react'
import { type Schemas, statusOf } from './api'
import { reloadAll } from './reload'
import { whoQuery } from './who'

export type TurnEvent = Schemas['TurnEvent']
export type TokenEvent = Schemas['TokenEvent']

export interface Scope {
  project: string
  /** Only the tree of this root turn. */
  root?: string
  /** Turns whose model output is wanted while it is written. */
  tokens?: string[]
}

export interface Watcher {
  batch(events: TurnEvent[], tokens: TokenEvent[]): void
  /** The stream is open: what is loaded from now on misses nothing. `isNew`: what is being loaded just now may have missed something. */
  opened?(isNew: boolean): void
}

export interface LiveState {
  /** `refused`: the caller may not watch. */
  state: 'off' | 'connecting' | 'live' | 'cut' | 'refused'
  /** When the stream was cut, in milliseconds since 1970. */
  since: number
  /** The number of the last event. */
  last: string
}

const kinds = ['state', 'step', 'request', 'task'] as const

class Live {
  private source: EventSource | null = null
  private address = ''
  private watchers = new Map<Watcher, Scope>()
  private events: TurnEvent[] = []
  private tokens: TokenEvent[] = []
  /** How many batches were planned, and the one that is awaited: 0 if none is. */
  private planned = 0
  private awaited = 0
  private timer: ReturnType<typeof setTimeout> | undefined
  private listeners = new Set<() => void>()
  private now: LiveState = { state: 'off', since: 0, last: '' }

  subscribe = (listener: () => void) => {
    this.listeners.add(listener)
    return () => this.listeners.delete(listener)
  }
  state = () => this.now

  private say(change: Partial<LiveState>) {
    this.now = { ...this.now, ...change }
    for (const listener of this.listeners) listener()
  }

  add(watcher: Watcher, scope: Scope) {
    this.watchers.set(watcher, scope)
    const before = this.address
    this.open()
    // The stream of the view before it goes on: what that view did not load may have changed.
    if (this.address === before && this.now.state === 'live') queueMicrotask(() => watcher.opened?.(false))
    return () => {
      this.watchers.delete(watcher)
      // The next view opens its own in the same tick: then this one is replaced, not closed and opened.
      queueMicrotask(() => this.open())
    }
  }

  private open() {
    const scope = [...this.watchers.values()].at(-1)
    const address = scope ? addressOf(scope) : ''
    if (address === this.address) return
    this.address = address
    this.close()
    this.events = []
    this.tokens = []
    this.now.last = ''
    if (address === '') return this.say({ state: 'off' })
    this.connect()
  }

  private close() {
    this.source?.close()
    this.source = null
    clearTimeout(this.timer)
  }

  /** Browsers open few connections to a host: a hidden tab gives its own back, and goes on from the last event later. */
  rest(isHidden: boolean) {
    if (!isHidden && this.source === null && this.address !== '') this.connect()
    if (isHidden && this.source !== null) {
      this.close()
      this.say({ state: 'connecting' })
    }
  }

  private connect() {
    const { last } = this.now
    this.say({ state: this.now.state === 'cut' ? 'cut' : 'connecting' })
    const address = last === '' ? this.address : withAfter(this.address, last)
    const source = new EventSource(address)
    this.source = source
    source.onopen = () => {
      this.say({ state: 'live' })
      for (const watcher of this.watchers.keys()) watcher.opened?.(true)
    }
    source.onerror = async () => {
      if (this.source !== source) return
      if (this.now.state !== 'cut') this.say({ state: 'cut', since: Date.now() })
      // The browser tries again by itself, and sends the number of the last event, unless the server refused the stream.
      if (source.readyState !== EventSource.CLOSED) return
      const status = await statusOf(address)
      if (this.source !== source || status === 401) return
      if (status === 403 || status === 404) return this.say({ state: 'refused' })
      this.timer = setTimeout(() => {
        if (this.source === source) this.connect()
      }, 2_000)
    }
    for (const kind of kinds) {
      source.addEventListener(kind, event => {
        this.now.last = event.lastEventId
        this.events.push(JSON.parse(event.data))
        this.plan()
      })
    }
    source.addEventListener('token', event => {
      this.tokens.push(JSON.parse(event.data))
      this.plan()
    })
  }

  /** Hands events over once per frame. A tab in the background has no frames: there it is twice a second. */
  private plan() {
    if (this.awaited !== 0) return
    this.planned += 1
    const batch = this.planned
    this.awaited = batch
    const hand = () => {
      if (this.awaited !== batch) return
      this.awaited = 0
      const [events, tokens] = [this.events, this.tokens]
      this.events = []
      this.tokens = []
      for (const watcher of [...this.watchers.keys()]) watcher.batch(events, tokens)
    }
    setTimeout(hand, 500)
    if (!document.hidden) requestAnimationFrame(hand)
  }
}

function addressOf(scope: Scope): string {
  const query = new URLSearchParams()
  if (scope.root) query.set('root', scope.root)
  if (scope.tokens?.length) query.set('tokens', scope.tokens.slice(0, 8).join(','))
  const text = query.toString()
  return `/v1/projects/${encodeURIComponent(scope.project)}/events${text && `?${text}`}`
}

function withAfter(address: string, after: string): string {
  return `${address}${address.includes('?') ? '&' : '?'}after=${encodeURIComponent(after)}`
}

export const live = new Live()

/** How long a tab may be hidden before it gives its connection back, in milliseconds. */
const HIDDEN = 5_000
let hidden: ReturnType<typeof setTimeout> | undefined
document.addEventListener('visibilitychange', () => {
  clearTimeout(hidden)
  if (document.hidden) hidden = setTimeout(() => live.rest(true), HIDDEN)
  else live.rest(false)
})

/** Watches while the component is shown. What was loaded is loaded again when the stream opens, so that nothing in between is missed. */
export function useLive(scope: Scope | null, watcher: Watcher) {
  const queries = useQueryClient()
  const batch = useEffectEvent((events: TurnEvent[], tokens: TokenEvent[]) => watcher.batch(events, tokens))
  const opened = useEffectEvent((isNew: boolean) => {
    if (scope && isNew) reloadAll(queries, [scope.project])
    else if (scope) queries.invalidateQueries({ queryKey: [scope.project] })
    // Another tab may have logged in as another user: the cookie is the same.
    if (queries.getQueryData(whoQuery.queryKey)?.canLogOut) queries.invalidateQueries({ queryKey: whoQuery.queryKey })
    watcher.opened?.(isNew)
  })
  const address = scope ? addressOf(scope) : ''
  // biome-ignore lint/correctness/useExhaustiveDependencies: the address says all that matters of the scope
  useEffect(() => {
    if (scope === null) return
    return live.add({ batch: (events, tokens) => batch(events, tokens), opened: isNew => opened(isNew) }, scope)
  }, [address])
}

export const useLiveState = () => useSyncExternalStore(live.subscribe, live.state)
