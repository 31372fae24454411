/** What the model saw: exactly which bytes, where they came from, and whether that is true. */
import { getRouteApi, Link } from '@tanstack/react-router'
import { type ReactNode, useMemo, useState } from 'react'
import { Problem, type Schemas } from '../../api'
import { useKeys } from '../../keys'
import { useLive } from '../../live'
import { Asked, Empty, Id, Loading, plain, Tabs } from '../../parts'
import { useTitle } from '../../title'
import { fitsTogether, stateOf, useVerification, type Verifying } from '../../verify'
import { useFormat } from '../../words'
import { Badges, Banner, Details, Tick, Unlike, Upgraded } from './Badges'
import { Bands } from './Bands'
import { messageRanges } from './bytes'
import { type Call, useHandovers, useReceipt, useRetention, useSeen, useTurn, useTurnAgain } from './data'
import { Inspector, Source } from './Inspector'
import { Messages } from './Messages'
import {
  type Band,
  bandsOf,
  bandsOfCards,
  type From,
  fromOf,
  leftOutOf,
  mergeSmall,
  type Receipt,
  reasonsOf,
  type Seen,
  type SeenMessage,
  type Share,
  sharesOf,
  stepLayer,
} from './model'
import { Left, ReceiptTab, Tools } from './Rest'
import { Sent } from './Sent'
import style from './saw.module.css'
import { useWords } from './words'

const route = getRouteApi('/$project/turns/$turn/steps/$step')

const tabs = ['messages', 'sent', 'tools', 'left', 'receipt'] as const
type Tab = (typeof tabs)[number]
type Shown = Schemas['Shown']

export function Saw() {
  const { project, turn, step } = route.useParams()
  const call = useMemo(() => ({ project, turn, step }), [project, turn, step])
  const shown = useTurn(call)
  const again = useTurnAgain(call)
  const seen = useSeen(call)
  const root = shown.data?.turn.root_turn_id
  const isOpen = shown.data?.turn.status === 'open'
  // The call itself never changes; a running turn gets further steps.
  useLive(root && isOpen ? { project, root } : null, {
    batch: events => {
      if (events.some(event => event.agent_turn_id === turn)) again()
    },
  })
  const problem = seen.error instanceof Problem ? seen.error : null
  const isErased = problem?.code === 'not_renderable'
  const receipt = useReceipt(call, isErased)
  // A step of another turn has no place here: nothing of the old one may stay on the screen.
  const key = `${turn} ${step}`
  if (seen.data) return <OneCall key={key} call={call} shown={shown.data} seen={seen.data} />
  if (isErased && receipt.data) {
    return <Erased key={key} call={call} shown={shown.data} receipt={receipt.data} why={problem.detail} />
  }
  if (problem?.status === 404 && shown.data) return <NoReceipt call={call} shown={shown.data} why={problem.detail} />
  if (shown.error) return <Asked query={shown}>{() => null}</Asked>
  if (isErased) return <Asked query={receipt}>{() => <Empty title={problem.detail} />}</Asked>
  return (
    <>
      <Header call={call} shown={shown.data} />
      <Asked query={seen}>{() => null}</Asked>
    </>
  )
}

/** Where in the turn the call is, and the way to the others. */
function Header({
  call,
  shown,
  receipt,
  children,
}: {
  call: Call
  shown: Shown | undefined
  receipt?: Receipt
  children?: ReactNode
}) {
  const w = useWords()
  const format = useFormat()
  const { tab } = route.useSearch()
  const navigate = route.useNavigate()
  const { project, turn, step } = call
  const steps = shown?.steps ?? []
  const at = steps.findIndex(one => one.step_id === step)
  const taken = steps[at]
  const asksModel = (one: Schemas['Taken']) => one.model != null
  const before = at > 0 ? steps.slice(0, at).findLast(asksModel) : undefined
  const after = at >= 0 ? steps.slice(at + 1).find(asksModel) : undefined
  const search = tab === undefined ? {} : { tab }
  const go = (to: Schemas['Taken'] | undefined) => () => {
    if (to) navigate({ to: '.', params: { project, turn, step: to.step_id }, search })
  }
  useKeys({ ArrowLeft: go(before), ArrowRight: go(after) }, [{ keys: '← →', what: w.keySteps }])
  const { input_tokens, cached_tokens, microdollars } = taken ?? {}
  const model = taken?.model ?? (typeof receipt?.params.model === 'string' ? receipt.params.model : null)
  const profile = plain(shown?.turn.profile_name ?? w.unknownAgent)
  const title = shown && at >= 0 ? w.title(profile, at + 1, steps.length) : w.titleUnknown
  useTitle(title)
  return (
    <header className={style.header}>
      <h1>{title}</h1>
      <nav className={style.steps} aria-label={w.keySteps}>
        {[before, after].map((to, n) => {
          const [text, says] = n === 0 ? [w.previous, w.previousSays] : [w.next, w.nextSays]
          return to ? (
            <Link
              key={text}
              className="button"
              to="/$project/turns/$turn/steps/$step"
              params={{ project, turn, step: to.step_id }}
              search={search}
              title={says}
            >
              {text}
            </Link>
          ) : (
            <button key={text} type="button" disabled title={says}>
              {text}
            </button>
          )
        })}
        <Link className="button" to="/$project/turns/$turn" params={{ project, turn }} search={{ step }}>
          {w.transcript}
        </Link>
      </nav>
      <i className={style.break} />
      <p className={style.facts}>
        {receipt && (
          <>
            <span>
              <code>
                {receipt.adapter} v{receipt.adapter_version}
              </code>
            </span>
            {model && (
              <span>
                <code>{plain(model)}</code>
              </span>
            )}
            <span>
              {receipt.recorded
                ? w.tokensAlone(format.number(receipt.n_tokens))
                : w.tokensOf(format.number(receipt.n_tokens), format.number(receipt.policy.budget))}
            </span>
          </>
        )}
        {taken && (
          <span>
            {input_tokens && cached_tokens != null
              ? w.cached(format.percent(cached_tokens / input_tokens))
              : w.cachedUnknown}
          </span>
        )}
        {microdollars != null && <span>{w.cost(format.money(microdollars))}</span>}
        {receipt?.recorded && (
          <span className={style.reported}>
            {(receipt.recorded.rests_on === 'import' ? w.imported : w.recorded)(plain(receipt.recorded.provider))}{' '}
            {w.restsOn[receipt.recorded.rests_on]}
          </span>
        )}
        {receipt?.reported && <span className={style.reported}>{w.reported}</span>}
      </p>
      {children}
    </header>
  )
}

function OneCall({ call, shown, seen }: { call: Call; shown: Shown | undefined; seen: Seen }) {
  const w = useWords()
  const format = useFormat()
  const search = route.useSearch()
  const navigate = route.useNavigate()
  const handed = useHandovers(call)
  const { receipt, messages } = seen
  const sources = useMemo(
    () => messages.flatMap(message => message.sources.map(({ card_id, hash }): [string, string] => [card_id, hash])),
    [messages],
  )
  const { verification, facts, bytes, lines, said, again } = useVerification(call, receipt, sources)
  const [open, setOpen] = useState(false)
  const handovers = handed.data ?? []
  const taken = shown?.steps.find(one => one.step_id === call.step)

  const tab: Tab = tabs.find(one => one === search.tab) ?? 'messages'
  const given = Math.min(messages.length, Math.max(0, Math.floor(Number(search.message)) || 0))
  const selected = given || 1
  const change = (to: { tab?: Tab; message?: number; card?: string }, replace = true) => {
    const { message, ...rest } = to
    const next = { ...search, ...rest, ...(message === undefined ? {} : { message: String(message) }) }
    // Another message has other cards.
    if (message !== undefined && to.card === undefined) delete next.card
    navigate({ to: '.', search: next, replace })
  }
  const select = (n: number) => change({ message: n })
  const showTab = (tab: Tab) => change({ tab }, false)

  const bands = useMemo(() => mergeSmall(bandsOf(seen, facts)), [seen, facts])
  const leftOut = useMemo(() => leftOutOf(seen, facts), [seen, facts])
  const parts = handed.data
  const fromOfMessage = useMemo(() => {
    const known = new Map<number, From>()
    return (n: number) => {
      const found = known.get(n) ?? fromOf(messages[n - 1]!, receipt, facts, parts ?? [])
      known.set(n, found)
      return found
    }
  }, [messages, receipt, facts, parts])
  const shares = useMemo(() => sharesOf(bands, fromOfMessage), [bands, fromOfMessage])
  const nTools = seen.tools?.names.length ?? 0
  const fits = useMemo(() => (said ? fitsTogether(messages, nTools, said) : null), [messages, nTools, said])
  const ranges = useMemo(() => (fits && lines && said ? messageRanges(lines, said) : null), [fits, lines, said])

  const isLoading = !handed.data || (!verification.done && !verification.list)
  const fromText = (from: From): string => {
    switch (from.kind) {
      case 'profile':
        return w.fromProfile(shown?.turn.profile_name ?? '')
      case 'framework':
        return w.fromFramework(from.version)
      case 'documents':
        return from.paths.join(', ')
      case 'block':
        return from.everyStep ? w.fromBlockEvery : w.fromBlock
      case 'handed': {
        const { source_agent_id, source_profile, tool_suffix, arg_key, rule } = from.handed
        const who = source_agent_id ? (source_profile ?? w.unknownAgent) : w.person
        return w.fromHanded(who, tool_suffix, arg_key ?? rule)
      }
      case 'own':
        return w.fromOwn
      case 'recorded':
        return w.fromRecorded(from.provider)
      case 'unknown':
        return isLoading ? w.loading : w.fromUnknown
    }
  }
  const fromLine = (from: From) => plain(fromText(from))
  const fromRow = (message: SeenMessage) => {
    const type = message.layer === 'steps' && facts.get(message.sources.at(-1)?.card_id ?? '')?.type
    return `${fromLine(fromOfMessage(message.n))}${type ? ` · ${plain(type)}` : ''}`
  }
  const shareTitle = (share: Share) => (share.from === null ? w.shareOther : fromLine(share.from))
  const openBand = (band: Band) => {
    if (band.kind === 'message') change({ tab: tab === 'sent' && ranges ? 'sent' : 'messages', message: band.first })
    else if (band.kind === 'tools') showTab('tools')
    else if (band.kind === 'omitted') change({ tab: 'left', card: band.cardIds[0]! }, false)
  }
  const where = () => {
    if (tab !== 'messages') showTab('messages')
    requestAnimationFrame(() => {
      const section = document.getElementById('saw-where')
      section?.scrollIntoView({ block: 'nearest' })
      section?.focus({ preventScroll: true })
    })
  }
  const verify = () => {
    setOpen(true)
    again()
  }
  useKeys(
    {
      '[': () => select(stepLayer(messages, selected, -1)),
      ']': () => select(stepLayer(messages, selected, 1)),
      j: () => select(Math.min(messages.length, selected + 1)),
      k: () => select(Math.max(1, selected - 1)),
      v: verify,
      r: () => showTab(tab === 'sent' ? 'messages' : 'sent'),
      l: () => showTab(tab === 'left' ? 'messages' : 'left'),
      w: where,
    },
    [
      { keys: '[ ]', what: w.keyLayers },
      { keys: 'j k', what: w.keyNext },
      { keys: 'v', what: w.keyVerify },
      { keys: 'r', what: w.keySent },
      { keys: 'l', what: w.keyLeft },
      { keys: 'w', what: w.keyWhere },
    ],
  )
  const isLeftOut = leftOut.some(one => one.cardId === search.card)
  const leftTokens = reasonsOf(leftOut).reduce((sum, one) => sum + one.tokens, 0)
  const showSent = ranges ? () => change({ tab: 'sent', message: selected }, false) : undefined
  return (
    <div className={style.page} data-state="shown">
      <Banner verification={verification} />
      {fits === false && <Unlike />}
      <Header call={call} shown={shown} receipt={receipt}>
        <Badges verification={verification} open={open} setOpen={setOpen} again={again} />
      </Header>
      <Upgraded verification={verification} />
      {open && <Details verification={verification} call={call} />}
      <Bands
        bands={bands}
        shares={shares}
        shareTitle={shareTitle}
        selected={given}
        cached={taken?.cached_tokens ?? null}
        share={!receipt.recorded && seen.budget > 0 ? receipt.n_tokens / seen.budget : null}
        open={openBand}
      />
      <Tabs
        label={w.tabs}
        panel="saw-panel"
        chosen={tab}
        choose={showTab}
        tabs={[
          { id: 'messages', title: w.tabMessages(format.number(messages.length)) },
          { id: 'sent', title: w.tabSent },
          { id: 'tools', title: w.tabTools(format.number(nTools)) },
          { id: 'left', title: w.tabLeft(format.number(leftOut.length)) },
          { id: 'receipt', title: w.tabReceipt },
        ]}
      />
      <div id="saw-panel" role="tabpanel" className={style.panel} data-tab={tab}>
        {tab === 'messages' && (
          <div className={style.two}>
            <div className={style.left}>
              <Messages messages={messages} selected={selected} select={select} fromText={fromRow} />
              {leftOut.length > 0 && (
                <button type="button" className={`plain ${style.leftLine}`} onClick={() => showTab('left')}>
                  ╌ {w.leftOutLine(format.number(leftOut.length), format.tokens(leftTokens))}
                </button>
              )}
            </div>
            <Inspector
              call={call}
              turn={shown?.turn}
              message={messages[selected - 1]}
              facts={facts}
              handovers={handovers}
              verification={verification}
              said={said}
              isRecorded={receipt.recorded != null}
              card={search.card}
              setCard={card => change({ card })}
              showSent={showSent}
            />
          </div>
        )}
        {tab === 'sent' && (
          <Sent
            bytes={bytes}
            check={verification.request}
            lines={lines}
            ranges={ranges}
            messages={messages}
            selected={given}
            select={n => change({ tab: 'messages', message: n }, false)}
            name={`request-${call.step}.json`}
          />
        )}
        {tab === 'tools' && <Tools call={call} tools={seen.tools} verification={verification} said={said} />}
        {tab === 'left' && (
          <div className={isLeftOut ? style.two : undefined}>
            <Left
              leftOut={leftOut}
              receipt={receipt}
              verification={verification}
              card={search.card}
              setCard={card => change({ card })}
            />
            {isLeftOut && (
              <aside className={style.inspector} aria-label={w.whereFrom}>
                <h2>{w.whereFrom}</h2>
                <Source
                  key={search.card}
                  call={call}
                  turn={shown?.turn}
                  source={{ card_id: search.card! }}
                  facts={facts}
                  handovers={handovers}
                  verification={verification}
                  isRecorded={receipt.recorded != null}
                />
              </aside>
            )}
          </div>
        )}
        {tab === 'receipt' && <ReceiptTab receipt={receipt} />}
      </div>
    </div>
  )
}

const noSources: [string, string][] = []

/** A call whose request cannot be rendered again: what is left of it is still checked. */
function Erased({
  call,
  shown,
  receipt,
  why,
}: {
  call: Call
  shown: Shown | undefined
  receipt: Receipt
  why: string
}) {
  const w = useWords()
  const { verification, facts, again }: Verifying = useVerification(call, receipt, noSources)
  const [open, setOpen] = useState(true)
  const format = useFormat()
  const cards = useMemo(() => [...facts.values()], [facts])
  const bands = useMemo(() => mergeSmall(bandsOfCards(cards, receipt)), [cards, receipt])
  const verify = () => {
    setOpen(true)
    again()
  }
  useKeys({ v: verify }, [{ keys: 'v', what: w.keyVerify }])
  return (
    <div className={style.page} data-state="erased">
      <Banner verification={verification} />
      <Header call={call} shown={shown} receipt={receipt}>
        <Badges verification={verification} open={open} setOpen={setOpen} again={again} />
      </Header>
      <Upgraded verification={verification} />
      <div className={style.notice} role="status">
        <h2>{w.erasedTitle}</h2>
        <p>{why}</p>
        <p>{w.erased}</p>
      </div>
      {open && <Details verification={verification} call={call} />}
      {cards.length === 0 ? (
        <Loading />
      ) : (
        <>
          <Bands
            bands={bands}
            shares={[]}
            shareTitle={() => ''}
            selected={0}
            cached={shown?.steps.find(one => one.step_id === call.step)?.cached_tokens ?? null}
            share={null}
            open={() => {}}
          />
          <section className={style.pad}>
            <h2>{w.erasedCards}</h2>
            <ul className={style.plainList}>
              {cards.slice(0, 500).map(fact => (
                <li key={fact.cardId}>
                  <Tick state={stateOf(verification.cards.get(fact.cardId))} /> <Id value={fact.cardId} />{' '}
                  {fact.gone ? <b>{w.goneOf(plain(fact.gone))}</b> : <code>{plain(fact.type)}</code>}{' '}
                  {fact.nTokens !== null && `${format.number(fact.nTokens)} ${w.tokens}`}
                </li>
              ))}
            </ul>
          </section>
          <ReceiptTab receipt={receipt} />
        </>
      )}
    </div>
  )
}

/** A step without a receipt: it called no model, or its receipt was removed. */
function NoReceipt({ call, shown, why }: { call: Call; shown: Shown; why: string }) {
  const w = useWords()
  const format = useFormat()
  const taken = shown.steps.find(one => one.step_id === call.step)
  const wasCall = taken?.model != null
  const kept = useRetention(call, wasCall)
  const months = kept.data?.record_months
  const title = !taken ? w.noStepTitle : wasCall ? w.droppedTitle : w.noCallTitle
  return (
    <div className={style.page} data-state={!taken ? 'gone' : wasCall ? 'dropped' : 'no_call'}>
      <Header call={call} shown={shown} />
      <Empty title={title}>
        {taken && !wasCall && <p>{w.noCall}</p>}
        {wasCall && <p>{months == null ? w.droppedUnknown : w.dropped(format.number(months))}</p>}
        <p className="muted">{why}</p>
      </Empty>
    </div>
  )
}
