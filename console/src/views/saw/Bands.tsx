/** The context to token scale: what stood where, whose it was, what was left out, and how far the cache went. */
import { type KeyboardEvent, useRef, useState } from 'react'
import { type Format, useFormat } from '../../words'
import { type Band, colourOf, letterOf, type Share } from './model'
import style from './saw.module.css'
import { useWords, type Words } from './words'

export function bandTitle(band: Band, w: Words, format: Format): string {
  const tokens = format.number(band.tokens)
  switch (band.kind) {
    case 'tools':
      return w.bandTools(tokens)
    case 'omitted':
      return w.bandOmitted(format.number(band.cardIds.length), w.reasons[band.reason!], tokens)
    case 'card':
      return w.bandCards(format.number(band.cardIds.length), band.layer, tokens)
    case 'gone':
      return w.bandGone(tokens)
    case 'format':
      return w.bandFormat(tokens)
    case 'message':
      return band.first === band.last
        ? w.bandMessage(format.number(band.first), band.layer, tokens)
        : w.bandMessages(format.number(band.first), format.number(band.last), band.layer, tokens)
  }
}

export function Bands({
  bands,
  shares,
  shareTitle,
  selected,
  cached,
  share,
  open,
}: {
  bands: Band[]
  shares: Share[]
  shareTitle: (share: Share) => string
  /** The number of the selected message. */
  selected: number
  /** Tokens that the provider read from its cache. Null if that was not recorded. */
  cached: number | null
  /** How much of the budget is used. Null if it is not known. */
  share: number | null
  open: (band: Band) => void
}) {
  const w = useWords()
  const format = useFormat()
  const row = useRef<HTMLDivElement>(null)
  const total = Math.max(
    1,
    bands.reduce((sum, band) => sum + band.tokens, 0),
  )
  const [said, setSaid] = useState('')
  const at = bands.findIndex(band => band.kind === 'message' && selected >= band.first && selected <= band.last)
  const focusable = Math.max(at, 0)
  const walk = (event: KeyboardEvent<HTMLElement>) => {
    const items = [...(row.current?.querySelectorAll<HTMLElement>('button') ?? [])]
    const from = items.indexOf(event.target as HTMLElement)
    const by = event.key === 'ArrowRight' ? 1 : event.key === 'ArrowLeft' ? -1 : 0
    const to = event.key === 'Home' ? 0 : event.key === 'End' ? items.length - 1 : from + by
    if (from < 0 || (by === 0 && event.key !== 'Home' && event.key !== 'End')) return
    event.preventDefault()
    items[Math.min(items.length - 1, Math.max(0, to))]?.focus()
  }
  // What was left out was never sent, so it does not count for the place at which the cache ended.
  const end = cached ? placeOf(bands, cached) / total : 0
  return (
    <section className={style.bands} aria-label={w.bands}>
      <div
        ref={row}
        className={`${style.row} ${bands.length > 120 ? style.dense : ''}`}
        role="toolbar"
        aria-label={`${w.bands}. ${w.bandsSays}`}
        onKeyDown={walk}
        onPointerLeave={() => setSaid('')}
      >
        {bands.map((band, n) => {
          const title = bandTitle(band, w, format)
          const hatch = band.kind === 'omitted' || band.kind === 'format'
          return (
            <button
              // biome-ignore lint/suspicious/noArrayIndexKey: the bands of a call stay where they are
              key={n}
              type="button"
              className={`${style.band} ${hatch ? style.hatched : ''} ${band.kind === 'gone' ? style.goneBand : ''}`}
              style={{ flexGrow: Math.max(band.tokens, total / 10_000), '--layer': colourOf(band.layer) } as object}
              tabIndex={n === focusable ? 0 : -1}
              aria-label={title}
              aria-pressed={n === at}
              title={title}
              onFocus={() => setSaid(title)}
              onPointerEnter={() => setSaid(title)}
              onClick={() => open(band)}
            >
              {band.tokens / total > 0.02 && (
                <span aria-hidden="true">{band.kind === 'format' ? '+' : letterOf(band.layer)}</span>
              )}
            </button>
          )
        })}
      </div>
      {shares.length > 0 && (
        <ul className={style.shares} aria-label={w.whose}>
          {shares.map((one, n) => {
            const title = `${shareTitle(one)}: ${format.number(one.tokens)}`
            return (
              <li
                // biome-ignore lint/suspicious/noArrayIndexKey: the shares of a call stay where they are
                key={n}
                className={one.from === null ? style.noShare : one.from.kind === 'handed' ? style.handed : undefined}
                style={{ flexGrow: Math.max(one.tokens, total / 10_000) }}
                title={title}
              >
                <span className={one.from !== null && one.tokens / total > 0.06 ? 'cut' : 'hidden'}>
                  {shareTitle(one)}
                </span>
              </li>
            )
          })}
        </ul>
      )}
      {end > 0 && (
        <div className={style.cache} aria-hidden="true">
          <i style={{ insetInlineStart: `${Math.min(100, end * 100)}%` }}>▲</i>
        </div>
      )}
      <p className={style.under}>
        <span>
          {cached === null ? w.cachedUnknown : cached > 0 ? `▲ ${w.cacheEnds(format.number(cached))}` : w.cacheNone}
          {cached !== null && cached > 0 && <span className="muted"> {w.cacheEndsSays}</span>}
        </span>
        {share !== null && (
          <span className={style.budget}>
            <meter min={0} max={1} value={share} aria-label={w.budgetUsed(format.percent(share))} />{' '}
            {w.budgetUsed(format.percent(share))}
          </span>
        )}
        <span className={style.said}>{said}</span>
      </p>
    </section>
  )
}

/** Returns how far along the bands so many sent tokens end. */
function placeOf(bands: Band[], sent: number): number {
  let [left, at] = [sent, 0]
  for (const band of bands) {
    if (left <= 0) break
    if (band.kind === 'omitted') at += band.tokens
    else {
      at += Math.min(left, band.tokens)
      left -= band.tokens
    }
  }
  return at
}
