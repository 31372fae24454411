import { useVirtualizer } from '@tanstack/react-virtual'
import { type KeyboardEvent, useEffect, useId, useMemo, useRef, useState } from 'react'
import { External } from '../../parts'
import { useFormat } from '../../words'
import { nameOf, numberOf, type Run } from './model'
import { looks, stepsAt, type Times, tookAt } from './playhead'
import style from './run.module.css'
import { lookGlyph } from './theme'
import { useWords } from './words'

interface Props {
  run: Run
  times: Times
  looks: Uint8Array
  t: number
  now: number
  lost: ReadonlyMap<number, number>
  selected: number
  select: (turn: number) => void
  open: (turn: number) => void
}

const ROW = 26

/** The turns as a tree of rows: the same as the graph, as text. */
export function TablePane({ run, times, looks: now, t, now: clock, lost, selected, select, open }: Props) {
  const w = useWords()
  const format = useFormat()
  const id = useId()
  const box = useRef<HTMLDivElement>(null)
  const [closed, setClosed] = useState<ReadonlySet<string>>(new Set())
  const rows = useMemo(() => {
    const shown: number[] = []
    for (let k = 0; k < run.n; ) {
      const i = run.order[k]!
      shown.push(i)
      k += closed.has(run.ids[i]!) ? run.below[i]! + 1 : 1
    }
    return shown
  }, [run, closed])
  const row = selected < 0 ? -1 : rows.indexOf(selected)
  const list = useVirtualizer({
    count: rows.length,
    getScrollElement: () => box.current,
    estimateSize: () => ROW,
    overscan: 12,
  })
  // biome-ignore lint/correctness/useExhaustiveDependencies: only a new selection scrolls
  useEffect(() => {
    if (row >= 0) list.scrollToIndex(row, { align: 'auto' })
  }, [row])

  const fold = (i: number, close: boolean) => {
    const next = new Set(closed)
    if (close) next.add(run.ids[i]!)
    else next.delete(run.ids[i]!)
    setClosed(next)
  }
  const hasChildren = (i: number) => run.childStart[i]! < run.childStart[i + 1]!
  const press = (event: KeyboardEvent) => {
    const at = Math.max(0, row)
    const i = rows[at]
    if (i === undefined) return
    const go = (to: number) => {
      const next = rows[Math.min(rows.length - 1, Math.max(0, to))]
      if (next !== undefined) select(next)
    }
    const page = Math.max(1, Math.floor((box.current?.clientHeight ?? 400) / ROW) - 2)
    const right = () => {
      if (!hasChildren(i)) return
      if (closed.has(run.ids[i]!)) fold(i, false)
      else select(run.children[run.childStart[i]!]!)
    }
    const left = () => {
      if (hasChildren(i) && !closed.has(run.ids[i]!)) fold(i, true)
      else if (run.parent[i]! >= 0) select(run.parent[i]!)
    }
    const keys = new Map<string, () => void>([
      ['ArrowDown', () => go(row < 0 ? 0 : at + 1)],
      ['ArrowUp', () => go(at - 1)],
      ['PageDown', () => go(at + page)],
      ['PageUp', () => go(at - page)],
      ['Home', () => go(0)],
      ['End', () => go(rows.length - 1)],
      ['ArrowRight', right],
      ['ArrowLeft', left],
      ['Enter', () => open(i)],
    ])
    const call = keys.get(event.key)
    if (!call || event.ctrlKey || event.metaKey || event.altKey) return
    event.preventDefault()
    call()
  }
  const head = [w.turn, w.status, w.started, w.took, w.stepsHead, w.tokensHead, w.cachedHead, w.cost, w.askedBy]
  const start = run.n > 0 ? run.created[0]! : 0
  return (
    <div
      ref={box}
      className={style.table}
      role="treegrid"
      aria-label={w.tableLabel}
      aria-rowcount={rows.length + 1}
      aria-colcount={head.length}
      aria-activedescendant={row >= 0 ? `${id}-${selected}` : undefined}
      tabIndex={0}
      onKeyDown={press}
    >
      <div className={style.head} role="row" aria-rowindex={1} tabIndex={-1}>
        {head.map((name, n) => (
          <div key={name} role="columnheader" tabIndex={-1} className={n >= 2 && n <= 7 ? 'number' : undefined}>
            {name}
          </div>
        ))}
      </div>
      <div role="rowgroup" className={style.body} style={{ height: list.getTotalSize() }}>
        {list.getVirtualItems().map(item => {
          const i = rows[item.index]!
          const look = looks[now[i]!]!
          const parent = run.parent[i]!
          const number = run.n <= 5_000 ? numberOf(run, i) : 0
          const isClosed = closed.has(run.ids[i]!)
          const edge = run.edges[run.edge[i]!]
          const input = run.input[i]!
          return (
            // biome-ignore lint/a11y/useKeyWithClickEvents: the keys are those of the grid
            <div
              key={run.ids[i]}
              id={`${id}-${i}`}
              role="row"
              tabIndex={-1}
              className={style.row}
              aria-rowindex={item.index + 2}
              aria-level={run.depth[i]! + 1}
              aria-selected={i === selected}
              {...(hasChildren(i) ? { 'aria-expanded': !isClosed } : {})}
              style={{ transform: `translateY(${item.start}px)`, height: ROW }}
              data-look={look}
              onClick={() => select(i)}
              onDoubleClick={() => open(i)}
            >
              <div role="gridcell" tabIndex={-1} style={{ paddingInlineStart: 8 + Math.min(12, run.depth[i]!) * 16 }}>
                <span
                  className={style.twist}
                  aria-hidden="true"
                  onClick={event => {
                    event.stopPropagation()
                    fold(i, !isClosed)
                  }}
                >
                  {hasChildren(i) ? (isClosed ? '▸' : '▾') : ''}
                </span>
                <span className="cut">{number > 0 ? `${nameOf(run, i)} ${number}` : nameOf(run, i)}</span>
                {run.external[i] === 1 && <External short />}
                {run.forked[i] === 1 && <span title={w.forkOf('')}> ⑂</span>}
              </div>
              <div role="gridcell" tabIndex={-1}>
                <span className={style.look} data-look={look}>
                  <span aria-hidden="true">{lookGlyph[look]}</span> {w.looks[look]}
                </span>
                {t >= (lost.get(i) ?? Number.NaN) && (
                  <span className={style.lost} title={w.takenOver}>
                    {' '}
                    ↻<span className="hidden">{w.takenOver}</span>
                  </span>
                )}
              </div>
              <div role="gridcell" tabIndex={-1} className="number">
                {look === 'absent' ? '' : `+${format.took(run.created[i]! - start)}`}
              </div>
              <div role="gridcell" tabIndex={-1} className="number">
                {look === 'absent' ? '' : format.took(tookAt(run, i, t, clock))}
              </div>
              <div role="gridcell" tabIndex={-1} className="number">
                {look === 'absent' ? '' : format.number(stepsAt(run, times, i, t))}
              </div>
              <div role="gridcell" tabIndex={-1} className="number">
                {format.tokens(input)} → {format.tokens(run.output[i]!)}
              </div>
              <div role="gridcell" tabIndex={-1} className="number">
                {input > 0 ? format.percent(run.cached[i]! / input) : ''}
              </div>
              <div role="gridcell" tabIndex={-1} className="number">
                {format.money(run.cost[i]!)}
              </div>
              <div role="gridcell" tabIndex={-1}>
                <span className="cut mono">{parent < 0 ? '' : (edge?.tool ?? w.notInRecord)}</span>
              </div>
            </div>
          )
        })}
      </div>
    </div>
  )
}
