/** One message: what it says, and for each of its cards the rows that say how it came here. */
import { Link } from '@tanstack/react-router'
import { useState } from 'react'
import type { Schemas } from '../../api'
import { Ago, Asked, External, Id, Loading, plain, Text } from '../../parts'
import { stateOf, type Verification } from '../../verify'
import { useFormat } from '../../words'
import { Tick } from './Badges'
import { type Call, useAnswering, useBox, useMessage, useSight, useWhy } from './data'
import { InRequest, type Read } from './InRequest'
import { Layer } from './Messages'
import type { Facts, Handed, SeenMessage } from './model'
import style from './saw.module.css'
import { useWords } from './words'

type Turn = Schemas['Summary']

export function Inspector({
  call,
  turn,
  message,
  facts,
  handovers,
  verification,
  said,
  isRecorded,
  card,
  setCard,
  showSent,
}: {
  call: Call
  turn: Turn | undefined
  message: SeenMessage | undefined
  facts: Facts
  handovers: Handed[]
  verification: Verification
  /** What the request says, once it is whole. */
  said: Read['said']
  /** The call was recorded from an agent elsewhere. */
  isRecorded: boolean
  /** The card that is looked at. */
  card: string | undefined
  setCard: (card: string) => void
  /** Shows the message in the request. Undefined if it is not known where it stands. */
  showSent: (() => void) | undefined
}) {
  const w = useWords()
  const format = useFormat()
  const body = useMessage(call, message?.n ?? 0)
  if (!message) {
    return (
      <aside className={style.inspector} aria-label={w.inspector}>
        <p className="muted">{w.choose}</p>
      </aside>
    )
  }
  const isOutside = message.sources.some(source => source.origin === 'external')
  const open =
    message.sources.find(source => source.card_id === card) ??
    // Where a handed card came from says more than the block beside it.
    message.sources.find(source => facts.get(source.card_id)?.list === 'history') ??
    message.sources[0]
  return (
    <aside className={style.inspector} aria-label={w.inspector}>
      <header>
        <h2>{w.message(format.number(message.n))}</h2>
        <Layer layer={message.layer} />
        <span>{message.role}</span>
        <span className="muted">
          {format.number(message.n_tokens)} {w.tokens} · {w.characters(format.number(message.chars))}
        </span>
        {showSent && (
          <button type="button" className="plain" onClick={showSent}>
            {w.inRequest}
          </button>
        )}
      </header>
      {isOutside && (
        <p className={style.outsideNote}>
          <External /> {w.outsideHere}
        </p>
      )}
      <Asked query={body} rows={4}>
        {shown => (
          <>
            <Body message={shown ?? message} />
            <InRequest message={shown ?? message} read={{ said, verification }} />
          </>
        )}
      </Asked>
      <section id="saw-where" tabIndex={-1} aria-label={w.whereFrom}>
        <h2 className={style.rule}>{w.whereFrom}</h2>
        {message.sources.length > 1 && (
          <div className={style.choices}>
            {message.sources.map(({ card_id }) => (
              <button
                key={card_id}
                type="button"
                aria-pressed={card_id === open?.card_id}
                onClick={() => setCard(card_id)}
              >
                <Tick state={stateOf(verification.cards.get(card_id))} />
                <span className="mono">…{card_id.slice(-8)}</span>
                <span className="muted">{facts.get(card_id)?.type}</span>
              </button>
            ))}
          </div>
        )}
        {open && (
          <Source
            key={open.card_id}
            call={call}
            turn={turn}
            source={open}
            facts={facts}
            handovers={handovers}
            verification={verification}
            isRecorded={isRecorded}
          />
        )}
        {message.tool_call_id && <Answering call={call} toolCall={message.tool_call_id} />}
      </section>
    </aside>
  )
}

/** Who answered a call that became turns. */
function Answering({ call, toolCall }: { call: Call; toolCall: string }) {
  const w = useWords()
  const turns = useAnswering(call, toolCall).data ?? []
  if (turns.length === 0) return null
  return (
    <p>
      {w.answeredBy}{' '}
      {turns.slice(0, 20).map(({ turn, profile }, n) => (
        <span key={turn}>
          {n > 0 && ', '}
          <Link to="/$project/turns/$turn" params={{ project: call.project, turn }} search={{}}>
            {plain(profile)} <span className="mono">…{turn.slice(-8)}</span>
          </Link>
        </span>
      ))}
      {turns.length > 20 && ' …'}
    </p>
  )
}

function Body({ message }: { message: SeenMessage }) {
  const w = useWords()
  const calls = message.tool_calls ?? []
  return (
    <div className={style.body}>
      {message.reasoning && (
        <details>
          <summary>{w.thought}</summary>
          <Text>{message.reasoning.text}</Text>
          {message.reasoning.verbatim && (
            <>
              <h3>{w.verbatim}</h3>
              <div className="mono">
                <Text>{message.reasoning.verbatim}</Text>
              </div>
            </>
          )}
        </details>
      )}
      {message.content ? <Text>{message.content}</Text> : calls.length === 0 && <p className="muted">{w.empty}</p>}
      {calls.length > 0 && (
        <div>
          <h3>{w.calls}</h3>
          {calls.map(one => (
            <div key={one.tool_call_id} className={style.call}>
              <code>{plain(one.tool_name)}</code> <Id value={one.tool_call_id} />
              <div className="mono">
                <Text>{one.arguments}</Text>
              </div>
            </div>
          ))}
        </div>
      )}
      {message.tool_call_id && (
        <p>
          <span className="muted">{w.answers}</span> <Id value={message.tool_call_id} />
        </p>
      )}
    </div>
  )
}

/** One card, and the rows that say how the turn got it. */
export function Source({
  call,
  turn,
  source,
  facts,
  handovers,
  verification,
  isRecorded,
}: {
  call: Call
  turn: Turn | undefined
  source: { card_id: string; origin?: Schemas['CardOrigin'] }
  facts: Facts
  handovers: Handed[]
  verification: Verification
  isRecorded: boolean
}) {
  const w = useWords()
  const format = useFormat()
  const why = useWhy(call, source.card_id)
  const fact = facts.get(source.card_id)
  const origin = source.origin ?? fact?.origin
  return (
    <div className={style.source}>
      <dl className={style.pairs}>
        <dt>{w.card}</dt>
        <dd>
          <Tick state={stateOf(verification.cards.get(source.card_id))} /> <Id value={source.card_id} />
          {origin === 'external' ? <External /> : origin && <span>{w.origins[origin]}</span>}
        </dd>
        {fact?.type && (
          <>
            <dt>{w.type}</dt>
            <dd>
              <code>{plain(fact.type)}</code>
              {fact.author && (
                <span>
                  {' · '}
                  {w.author} <code>{plain(fact.author)}</code>
                </span>
              )}
            </dd>
          </>
        )}
        {fact?.createdAt && (
          <>
            <dt>{w.written}</dt>
            <dd>
              <Ago time={fact.createdAt} />
            </dd>
          </>
        )}
        {fact?.gone && (
          <>
            <dt />
            <dd>{w.goneOf(plain(fact.gone))}</dd>
          </>
        )}
        {fact?.boxId && (
          <>
            <dt>{w.box}</dt>
            <dd>
              <Id value={fact.boxId} /> {fact.place !== null && w.boxPlace(format.number(fact.place))}
            </dd>
          </>
        )}
        {fact?.list === 'named' && (
          <>
            <dt>{w.box}</dt>
            <dd className="muted">{w.namedOnly}</dd>
          </>
        )}
        {fact?.writtenIn && <WrittenIn call={call} turn={turn} box={fact.writtenIn} />}
      </dl>
      <Asked query={why} rows={2}>
        {rows =>
          rows.length === 0 ? (
            <p className="muted">{isRecorded ? w.noWhyRecorded : w.noWhy}</p>
          ) : (
            <ol className={style.whys}>
              {rows.map(row => (
                <Why key={`${row.box_id} ${row.place}`} call={call} turn={turn} row={row} handovers={handovers} />
              ))}
            </ol>
          )
        }
      </Asked>
      <Sight call={call} card={source.card_id} />
    </div>
  )
}

/** The box in which a card was written, and the turn that it belongs to. */
function WrittenIn({ call, turn, box }: { call: Call; turn: Turn | undefined; box: string }) {
  const w = useWords()
  const found = useBox(call, box)
  const writer = found.data?.agent_turn_id
  const isContext = box === turn?.context_box_id
  return (
    <>
      <dt>{w.writtenBy}</dt>
      <dd>
        <Id value={box} />{' '}
        {isContext ? (
          w.ownContext
        ) : writer === call.turn ? (
          w.ownTurn
        ) : writer ? (
          <Link to="/$project/turns/$turn" params={{ project: call.project, turn: writer }} search={{}}>
            {w.turnLink}
          </Link>
        ) : (
          found.data && <span className="muted">{w.noTurn}</span>
        )}
      </dd>
    </>
  )
}

function Why({
  call,
  turn,
  row,
  handovers,
}: {
  call: Call
  turn: Turn | undefined
  row: Schemas['Why']
  handovers: Handed[]
}) {
  const w = useWords()
  const format = useFormat()
  const { source_agent_id, tool_suffix } = row
  const known = handovers.find(one => one.source_agent_id === source_agent_id && one.source_profile)
  const agent = source_agent_id ? (known?.source_profile ?? w.unknownAgent) : w.person
  const tool = tool_suffix ?? w.fromUnknown
  const says = plain(w.rules[row.rule]?.({ agent, tool }) ?? w.ruleOther(row.rule))
  // The turn names the call that started it; only for its agent that is the call that handed over.
  const isCaller = source_agent_id != null && source_agent_id === turn?.source_agent_id
  const caller = isCaller ? turn?.parent_agent_turn_id : null
  const step = isCaller ? turn?.parent_step_id : null
  return (
    <li>
      <p>{says}</p>
      <dl className={style.pairs}>
        <dt>{w.rule}</dt>
        <dd>
          <code>{row.rule}</code>
          {row.arg_key && (
            <span>
              {' · '}
              {w.argument} <code>{plain(row.arg_key)}</code>
            </span>
          )}
          {tool_suffix && (
            <span>
              {' · '}
              {w.tool} <code>{plain(tool_suffix)}</code>
            </span>
          )}
        </dd>
        {source_agent_id && (
          <>
            <dt>{w.agent}</dt>
            <dd>
              {plain(known?.source_profile)} <Id value={source_agent_id} />{' '}
              {caller && (
                <Link to="/$project/turns/$turn" params={{ project: call.project, turn: caller }} search={{}}>
                  {w.callerTurn}
                </Link>
              )}
              {caller && step && (
                <>
                  {' · '}
                  <Link
                    to="/$project/turns/$turn/steps/$step"
                    params={{ project: call.project, turn: caller, step }}
                    search={{}}
                  >
                    {w.callerSaw}
                  </Link>
                </>
              )}
            </dd>
          </>
        )}
        <dt>{w.box}</dt>
        <dd>
          <Id value={row.box_id} /> {w.boxPlace(format.number(row.place))}
        </dd>
        {row.source_box_id && (
          <>
            <dt>{w.taken}</dt>
            <dd>
              <Id value={row.source_box_id} /> {row.upto != null && w.upto(format.number(row.upto))}
            </dd>
          </>
        )}
        {row.via && (
          <>
            <dt>{w.right}</dt>
            <dd>
              <code>{row.via}</code>
            </dd>
          </>
        )}
      </dl>
    </li>
  )
}

/** Who could see a card by the rows of handovers and grants, and which calls read it by their receipts. */
function Sight({ call, card }: { call: Call; card: string }) {
  const w = useWords()
  const format = useFormat()
  const [open, setOpen] = useState(false)
  const found = useSight(call, card, open)
  return (
    <details onToggle={event => setOpen(event.currentTarget.open)}>
      <summary>{w.whoSaw}</summary>
      {open && !found.data && !found.error && <Loading rows={2} />}
      {open && (found.data || found.error) && (
        <Asked query={found} rows={2}>
          {({ sight, calls }) => (
            <>
              <h3>{w.could}</h3>
              {sight.items.length === 0 && <p className="muted">{w.nobody}</p>}
              <ul className={style.plainList}>
                {sight.items.map(one => (
                  <li key={`${one.agent_id} ${one.box_id} ${one.place} ${one.via}`}>
                    <Id value={one.agent_id} /> {w.via[one.via] ?? one.via}
                    {one.rule && (
                      <>
                        {' '}
                        <code>{one.rule}</code>
                      </>
                    )}{' '}
                    {one.agent_turn_id && (
                      <Link
                        to="/$project/turns/$turn"
                        params={{ project: call.project, turn: one.agent_turn_id }}
                        search={{}}
                      >
                        …{one.agent_turn_id.slice(-8)}
                      </Link>
                    )}
                  </li>
                ))}
              </ul>
              <h3>{w.did}</h3>
              {calls.items.length === 0 && <p className="muted">{w.noCalls}</p>}
              <ul className={style.plainList}>
                {calls.items.map(one => (
                  <li key={one.step_id}>
                    <Link
                      to="/$project/turns/$turn/steps/$step"
                      params={{ project: call.project, turn: one.agent_turn_id, step: one.step_id }}
                      search={{}}
                    >
                      …{one.agent_turn_id.slice(-8)} / …{one.step_id.slice(-8)}
                    </Link>{' '}
                    {w.boxPlace(format.number(one.place))} <Ago time={one.read_at} />
                  </li>
                ))}
              </ul>
              {(sight.next != null || calls.next != null) && <p className="muted">{w.more100}</p>}
            </>
          )}
        </Asked>
      )}
    </details>
  )
}
