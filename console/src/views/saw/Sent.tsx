/** The request as it was sent. Rows are made of the bytes that are on the screen. */
import { useVirtualizer } from '@tanstack/react-virtual'
import { useDeferredValue, useEffect, useLayoutEffect, useMemo, useRef, useState } from 'react'
import { Empty, useCopy, visible } from '../../parts'
import type { Check, Outline, Range } from '../../verify'
import { useFormat } from '../../words'
import { find, rangeAt, rowAt, rowsOf } from './bytes'
import { colourOf, letterOf, type SeenMessage } from './model'
import style from './saw.module.css'
import { useWords } from './words'

const ROW = 18
/** A row with a button is as high as a finger or a shaky hand needs. */
const FIRST_ROW = 24
/** Rows that are not wrapped are cut as well: a browser does not draw a line of a megabyte. */
const LONG = 2_000

export function Sent({
  bytes,
  check,
  lines,
  ranges,
  messages,
  selected,
  select,
  name,
}: {
  bytes: Uint8Array | null
  check: Check | undefined
  lines: Outline | null
  /** Where each message stands. Null if the format does not say. */
  ranges: Range[] | null
  messages: SeenMessage[]
  selected: number
  select: (n: number) => void
  name: string
}) {
  const w = useWords()
  if (bytes && lines) {
    return <Shown {...{ bytes, lines, ranges, messages, selected, select, name }} />
  }
  if (!check || check.ok !== null) {
    return (
      <p className={style.pad} role="status">
        {w.sentLoading}
      </p>
    )
  }
  return (
    <Empty title={w.sentNone}>
      <p>{check.why && w.why[check.why]}</p>
      <p>{check.detail}</p>
    </Empty>
  )
}

function Shown({
  bytes,
  lines,
  ranges,
  messages,
  selected,
  select,
  name,
}: {
  bytes: Uint8Array
  lines: Outline
  ranges: Range[] | null
  messages: SeenMessage[]
  selected: number
  select: (n: number) => void
  name: string
}) {
  const w = useWords()
  const format = useFormat()
  const box = useRef<HTMLDivElement>(null)
  const [wrap, setWrap] = useState(true)
  const [columns, setColumns] = useState(100)
  const [text, setText] = useState('')
  const [place, setPlace] = useState(0)
  const [copied, copy] = useCopy()
  const wanted = useDeferredValue(text)
  const rows = useMemo(() => rowsOf(bytes, lines.starts, wrap ? columns : LONG), [bytes, lines, wrap, columns])
  const found = useMemo(() => find(bytes, wanted), [bytes, wanted])
  const length = new TextEncoder().encode(wanted).length
  const begins = useMemo(() => new Set(ranges?.map(range => range.from)), [ranges])
  const virtual = useVirtualizer({
    count: rows.length - 1,
    getScrollElement: () => box.current,
    estimateSize: index => (begins.has(rows[index]!) ? FIRST_ROW : ROW),
    overscan: 20,
  })
  // biome-ignore lint/correctness/useExhaustiveDependencies: other rows are higher now
  useLayoutEffect(() => virtual.measure(), [rows, begins])
  // A row has as many columns as fit: one byte is at most one column wide.
  useEffect(() => {
    const element = box.current
    if (!element) return
    const measure = () => setColumns(Math.max(20, Math.floor((element.clientWidth - 100) / 7.3)))
    const observer = new ResizeObserver(measure)
    observer.observe(element)
    measure()
    return () => observer.disconnect()
  }, [])
  const go = (to: number) => {
    const next = (to + found.length) % Math.max(1, found.length)
    setPlace(next)
    const at = found[next]
    if (at !== undefined) virtual.scrollToIndex(rowAt(rows, at), { align: 'center' })
  }
  const range = ranges?.[selected - 1]
  const start = range?.from
  useEffect(() => {
    if (start !== undefined) virtual.scrollToIndex(rowAt(rows, start), { align: 'start' })
  }, [start, rows, virtual])
  const first = found[0]
  useEffect(() => {
    setPlace(0)
    if (first !== undefined) virtual.scrollToIndex(rowAt(rows, first), { align: 'center' })
  }, [first, rows, virtual])
  const download = () => {
    const url = URL.createObjectURL(new Blob([bytes as BlobPart], { type: 'application/json' }))
    const link = document.createElement('a')
    link.href = url
    link.download = name
    link.click()
    URL.revokeObjectURL(url)
  }
  const current = found[place]
  return (
    <div className={style.sent}>
      <div className={style.tools}>
        <input
          type="search"
          value={text}
          placeholder={w.search}
          aria-label={w.search}
          onChange={event => setText(event.target.value)}
          onKeyDown={event => {
            if (event.key === 'Enter') go(place + (event.shiftKey ? -1 : 1))
          }}
        />
        {text !== '' && (
          <>
            <span role="status">
              {found.length > 0 ? w.found(format.number(place + 1), format.number(found.length)) : w.foundNone}
            </span>
            <button type="button" onClick={() => go(place - 1)} disabled={found.length === 0}>
              {w.searchPrevious}
            </button>
            <button type="button" onClick={() => go(place + 1)} disabled={found.length === 0}>
              {w.searchNext}
            </button>
          </>
        )}
        <label>
          <input type="checkbox" checked={wrap} onChange={event => setWrap(event.target.checked)} /> {w.wrap}
        </label>
        <button type="button" onClick={() => copy(new TextDecoder().decode(bytes))}>
          {copied ? w.copied : w.copy}
        </button>
        <button type="button" onClick={download}>
          {w.download}
        </button>
        <span className="muted">{w.sentSize(format.bytes(bytes.length), format.number(rows.length - 1))}</span>
      </div>
      <div
        ref={box}
        className={`${style.scroll} ${style.bytes} ${wrap ? '' : style.wide}`}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a part that scrolls must be reachable with the keyboard
        tabIndex={0}
        role="region"
        aria-label={w.sent}
        // Here the arrows scroll; they do not go to another step.
        onKeyDown={event => {
          if (event.key === 'ArrowLeft' || event.key === 'ArrowRight') event.stopPropagation()
        }}
      >
        <div className={style.whole} style={{ height: virtual.getTotalSize() }}>
          {virtual.getVirtualItems().map(({ index, start }) => {
            const [from, upto] = [rows[index]!, rows[index + 1]!]
            const n = ranges ? rangeAt(ranges, from) : 0
            const hit = current !== undefined && current < upto && current + length > from
            return (
              <div
                key={index}
                className={`${style.byteRow} ${n > 0 && n === selected ? style.chosen : ''}`}
                style={{ transform: `translateY(${start}px)` }}
              >
                <span className={style.offset}>{from}</span>
                {begins.has(from) ? (
                  <button
                    type="button"
                    className={style.jump}
                    style={{ '--layer': colourOf(messages[n - 1]?.layer ?? '') } as object}
                    aria-label={w.message(format.number(n))}
                    title={w.message(format.number(n))}
                    onClick={() => select(n)}
                  >
                    {letterOf(messages[n - 1]?.layer ?? '')}
                  </button>
                ) : (
                  <span className={style.jump} />
                )}
                <Row bytes={bytes.subarray(from, upto)} mark={hit ? [current - from, current - from + length] : null} />
              </div>
            )
          })}
        </div>
      </div>
      <p className="muted">{w.rowsSay}</p>
    </div>
  )
}

const decoder = new TextDecoder()

function Row({ bytes, mark }: { bytes: Uint8Array; mark: [number, number] | null }) {
  if (!mark) return <Characters text={decoder.decode(bytes)} />
  const [from, upto] = [Math.max(0, mark[0]), Math.min(bytes.length, mark[1])]
  return (
    <span className={style.rowText}>
      <Characters text={decoder.decode(bytes.subarray(0, from))} />
      <mark>
        <Characters text={decoder.decode(bytes.subarray(from, upto))} />
      </mark>
      <Characters text={decoder.decode(bytes.subarray(upto))} />
    </span>
  )
}

function Characters({ text }: { text: string }) {
  return (
    <span className={style.rowText} dir="ltr">
      {visible(text.replace(/\n$/, '')).map((piece, n) =>
        typeof piece === 'string' ? (
          piece
        ) : (
          // biome-ignore lint/suspicious/noArrayIndexKey: pieces of one text never move
          <span key={n} className={style.hiddenCharacter}>
            {piece.hidden}
          </span>
        ),
      )}
    </span>
  )
}
