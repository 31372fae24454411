import { type Folds, layout, type Tree } from './layout'

const scope = self as unknown as {
  onmessage: ((event: MessageEvent) => void) | null
  postMessage(message: unknown): void
}
scope.onmessage = (event: MessageEvent<{ turn: number; tree: Tree; folds: Folds }>) => {
  scope.postMessage({ turn: event.data.turn, plan: layout(event.data.tree, event.data.folds) })
}
