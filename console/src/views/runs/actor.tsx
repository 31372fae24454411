import { useWho } from '../../who'
import { useWords } from './words'

/** As whom a write will be recorded. */
export function RecordedAs() {
  const w = useWords()
  const who = useWho()
  return (
    <span className="muted">
      {w.recordedAs} <code>{who?.actor ?? '…'}</code>
    </span>
  )
}
