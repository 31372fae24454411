import { useEffect } from 'react'
import { plain } from './parts'

/** Names the tab of the browser while a view is shown. */
export function useTitle(title: string | undefined) {
  const shown = plain(title)
  useEffect(() => {
    document.title = shown ? `${shown} · Waybill` : 'Waybill'
    return () => {
      document.title = 'Waybill'
    }
  }, [shown])
}
