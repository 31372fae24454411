/** Where the turns of a run are drawn: from left to right by depth, a parent beside the middle of its children. Many siblings are one strip of cells. */

export const NODE_W = 156
export const NODE_H = 42
/** Between two columns: the calls and joins are drawn here. */
export const GAP = 116
/** From the bracket of a group to its turns. */
export const BRACKET = 18
const ROW_GAP = 14
const GROUP_GAP = 18
export const CELL = 10
export const STRIP_HEAD = 20
/** More siblings than this become a strip; so many unfold at once. */
export const MOST_SIBLINGS = 64
export const UNFOLD = 32

export interface Tree {
  n: number
  parent: Int32Array
  childStart: Int32Array
  children: Int32Array
  /** The call that asked for each turn. */
  group: Int32Array
}

/** A part of a strip that is shown as turns: the group (by its first child) and a range of its children. */
export interface Unfolded {
  first: number
  from: number
  to: number
}

export interface Folds {
  /** Turns whose children are hidden. */
  closed: number[]
  unfolded: Unfolded[]
}

export const noFolds: Folds = { closed: [], unfolded: [] }

export interface Layout {
  /** Number of items: turns and strips. */
  n: number
  x: Float32Array
  y: Float32Array
  w: Float32Array
  h: Float32Array
  /** The turn of an item. For a strip, -1. */
  turn: Int32Array
  /** A strip shows `children[stripFrom .. stripTo]` of the tree. 0 for turns. */
  stripFrom: Int32Array
  stripTo: Int32Array
  /** The item of each turn: its own, or the strip that it is a cell of. -1 if it is hidden. */
  item: Int32Array
  /** Items of one column, from top to bottom: `column[columnStart[d] .. columnStart[d + 1]]`. */
  column: Int32Array
  columnStart: Int32Array
  /** Groups of children, by the column of the children and from top to bottom. */
  groups: Groups
  groupStart: Int32Array
  width: number
  height: number
}

export interface Groups {
  n: number
  /** The item of the parent. */
  parent: Int32Array
  /** Its first child, a turn. */
  first: Int32Array
  size: Int32Array
  /** Items of the group are `members[memberStart[g] .. memberStart[g + 1]]`. */
  memberStart: Int32Array
  members: Int32Array
  top: Float32Array
  bottom: Float32Array
}

export function layout(tree: Tree, folds: Folds): Layout {
  const closed = new Set(folds.closed)
  const unfolded = new Map<number, Unfolded[]>()
  for (const one of folds.unfolded) {
    const list = unfolded.get(one.first)
    if (list) list.push(one)
    else unfolded.set(one.first, [one])
  }
  const x: number[] = []
  const y: number[] = []
  const w: number[] = []
  const h: number[] = []
  const turn: number[] = []
  const stripFrom: number[] = []
  const stripTo: number[] = []
  const depth: number[] = []
  const item = new Int32Array(tree.n).fill(-1)
  const groups: { depth: number; parent: number; first: number; size: number; members: number[] }[] = []
  const widths: number[] = []

  const place = (which: number, column: number, wide: number, high: number, from = 0, to = 0): number => {
    const at = x.length
    x.push(0)
    y.push(0)
    w.push(wide)
    h.push(high)
    turn.push(which)
    stripFrom.push(from)
    stripTo.push(to)
    depth.push(column)
    widths[column] = Math.max(widths[column] ?? 0, wide)
    if (which >= 0) item[which] = at
    else for (let c = from; c < to; c++) item[tree.children[c]!] = at
    return at
  }

  /** Makes the items of the children of a turn, and returns them. */
  const open = (parentItem: number): number[] => {
    const parent = turn[parentItem]!
    if (parent < 0 || closed.has(parent)) return []
    const column = depth[parentItem]! + 1
    const made: number[] = []
    const end = tree.childStart[parent + 1]!
    for (let from = tree.childStart[parent]!; from < end; ) {
      const first = tree.children[from]!
      let to = from + 1
      while (to < end && tree.group[tree.children[to]!] === tree.group[first]) to++
      const members: number[] = []
      for (const [a, b, isStrip] of pieces(to - from, unfolded.get(first))) {
        if (isStrip) {
          const [wide, high] = stripSize(b - a)
          members.push(place(-1, column, wide, high, from + a, from + b))
        } else {
          for (let k = a; k < b; k++) members.push(place(tree.children[from + k]!, column, NODE_W, NODE_H))
        }
      }
      groups.push({ depth: column, parent: parentItem, first, size: to - from, members })
      made.push(...members)
      from = to
    }
    return made
  }

  // A turn without children takes the next free row. A parent goes beside the middle of its children when all of them are placed.
  let cursor = 0
  const stack: { item: number; kids: number[] | null; next: number }[] = []
  for (let i = tree.n - 1; i >= 0; i--) {
    if (tree.parent[i]! < 0) stack.push({ item: -1 - i, kids: null, next: 0 })
  }
  while (stack.length > 0) {
    const top = stack[stack.length - 1]!
    if (top.item < 0) top.item = place(-1 - top.item, 0, NODE_W, NODE_H)
    if (top.kids === null) top.kids = open(top.item)
    if (top.next < top.kids.length) {
      const kid = top.kids[top.next]!
      if (top.next > 0 && groupEdge(tree, turn, stripFrom, top.kids[top.next - 1]!, kid)) cursor += GROUP_GAP
      top.next++
      stack.push({ item: kid, kids: null, next: 0 })
      continue
    }
    stack.pop()
    if (top.kids.length === 0) {
      y[top.item] = cursor
      cursor += h[top.item]! + ROW_GAP
    } else {
      const [a, b] = [top.kids[0]!, top.kids[top.kids.length - 1]!]
      y[top.item] = (y[a]! + y[b]! + h[b]! - h[top.item]!) / 2
      // A tall strip beside a low parent, or the other way round: nothing above it may be crossed.
      cursor = Math.max(cursor, y[top.item]! + h[top.item]! + ROW_GAP)
    }
  }

  const left: number[] = []
  let right = 0
  for (let d = 0; d < widths.length; d++) {
    left.push(right)
    right += widths[d]! + GAP
  }
  const n = x.length
  const columns: number[][] = widths.map(() => [])
  for (let k = 0; k < n; k++) {
    x[k] = left[depth[k]!]!
    columns[depth[k]!]!.push(k)
  }
  for (const one of columns) one.sort((a, b) => y[a]! - y[b]!)
  groups.sort((a, b) => a.depth - b.depth || y[a.members[0]!]! - y[b.members[0]!]!)
  const groupCounts = widths.map(() => 0)
  for (const one of groups) groupCounts[one.depth]!++
  return {
    n,
    x: Float32Array.from(x),
    y: Float32Array.from(y),
    w: Float32Array.from(w),
    h: Float32Array.from(h),
    turn: Int32Array.from(turn),
    stripFrom: Int32Array.from(stripFrom),
    stripTo: Int32Array.from(stripTo),
    item,
    column: Int32Array.from(columns.flat()),
    columnStart: starts(columns.map(one => one.length)),
    groups: {
      n: groups.length,
      parent: Int32Array.from(groups, one => one.parent),
      first: Int32Array.from(groups, one => one.first),
      size: Int32Array.from(groups, one => one.size),
      memberStart: starts(groups.map(one => one.members.length)),
      members: Int32Array.from(groups.flatMap(one => one.members)),
      top: Float32Array.from(groups, one => y[one.members[0]!]!),
      bottom: Float32Array.from(groups, one => y[one.members.at(-1)!]! + h[one.members.at(-1)!]!),
    },
    groupStart: starts(groupCounts),
    width: Math.max(0, right - GAP),
    height: Math.max(0, cursor - ROW_GAP),
  }
}

function groupEdge(tree: Tree, turn: number[], stripFrom: number[], a: number, b: number): boolean {
  const one = (k: number) => (turn[k]! >= 0 ? turn[k]! : tree.children[stripFrom[k]!]!)
  return tree.group[one(a)] !== tree.group[one(b)]
}

function starts(sizes: number[]): Int32Array {
  const all = new Int32Array(sizes.length + 1)
  for (let k = 0; k < sizes.length; k++) all[k + 1] = all[k]! + sizes[k]!
  return all
}

/** Cuts a group into strips and shown ranges: `[from, to, isStrip]`. */
export function pieces(size: number, shown: Unfolded[] = []): [number, number, boolean][] {
  if (size <= MOST_SIBLINGS) return [[0, size, false]]
  const made: [number, number, boolean][] = []
  let at = 0
  for (const { from, to } of [...shown].sort((a, b) => a.from - b.from)) {
    const [a, b] = [Math.max(at, from), Math.min(size, to)]
    if (a >= b) continue
    if (a > at) made.push([at, a, true])
    made.push([a, b, false])
    at = b
  }
  if (at < size) made.push([at, size, true])
  return made
}

/** Cells in a row of a strip. */
export function stripColumns(cells: number): number {
  return Math.min(Math.max(Math.ceil(Math.sqrt(cells * 2.4)), Math.ceil(NODE_W / CELL)), 100)
}

function stripSize(cells: number): [number, number] {
  const columns = stripColumns(cells)
  return [columns * CELL, Math.max(NODE_H, STRIP_HEAD + Math.ceil(cells / columns) * CELL)]
}

/** Left upper corner of a cell. */
export function cellAt(plan: Layout, strip: number, cell: number): [number, number] {
  const columns = stripColumns(plan.stripTo[strip]! - plan.stripFrom[strip]!)
  return [plan.x[strip]! + (cell % columns) * CELL, plan.y[strip]! + STRIP_HEAD + Math.floor(cell / columns) * CELL]
}

/** Returns the place of the first item of a column that ends at `y` or below. */
export function firstBelow(plan: Layout, d: number, y: number): number {
  let [low, high] = [plan.columnStart[d]!, plan.columnStart[d + 1]!]
  while (low < high) {
    const middle = (low + high) >> 1
    const k = plan.column[middle]!
    if (plan.y[k]! + plan.h[k]! < y) low = middle + 1
    else high = middle
  }
  return low
}

/** The turn at a point, or -1. */
export function hit(plan: Layout, tree: Pick<Tree, 'children'>, x: number, y: number): number {
  for (let d = 0; d + 1 < plan.columnStart.length; d++) {
    const at = firstBelow(plan, d, y)
    if (at >= plan.columnStart[d + 1]!) continue
    const k = plan.column[at]!
    if (x < plan.x[k]! || x > plan.x[k]! + plan.w[k]! || y < plan.y[k]!) continue
    if (plan.turn[k]! >= 0) return plan.turn[k]!
    const columns = stripColumns(plan.stripTo[k]! - plan.stripFrom[k]!)
    const column = Math.floor((x - plan.x[k]!) / CELL)
    const row = Math.floor((y - plan.y[k]! - STRIP_HEAD) / CELL)
    const cell = row * columns + column
    const isInside = row >= 0 && column < columns && plan.stripFrom[k]! + cell < plan.stripTo[k]!
    return isInside ? tree.children[plan.stripFrom[k]! + cell]! : -1
  }
  return -1
}

/** The rectangle of a turn: its box or its cell. `null` if it is hidden. */
export function boxOf(
  plan: Layout,
  tree: Pick<Tree, 'children'>,
  turn: number,
): { x: number; y: number; w: number; h: number } | null {
  const k = plan.item[turn] ?? -1
  if (k < 0) return null
  if (plan.turn[k]! >= 0) return { x: plan.x[k]!, y: plan.y[k]!, w: plan.w[k]!, h: plan.h[k]! }
  for (let c = plan.stripFrom[k]!; c < plan.stripTo[k]!; c++) {
    if (tree.children[c] === turn) {
      const [x, y] = cellAt(plan, k, c - plan.stripFrom[k]!)
      return { x, y, w: CELL, h: CELL }
    }
  }
  return null
}

/** Changes the folds so that a turn is shown: what hides it is unfolded. A cell of a strip counts as shown. */
export function reveal(tree: Tree, folds: Folds, turn: number): Folds {
  let { closed, unfolded } = folds
  for (let i = tree.parent[turn]!; i >= 0; i = tree.parent[i]!) {
    if (closed.includes(i)) {
      const hides = i
      closed = closed.filter(one => one !== hides)
    }
    unfolded = unfold(tree, unfolded, i)
  }
  return closed === folds.closed && unfolded === folds.unfolded ? folds : { closed, unfolded }
}

/** Where a turn is in its group: the first child of the group, its own place, and how many there are. */
export function placeInGroup(tree: Tree, turn: number): { first: number; at: number; size: number } {
  const parent = tree.parent[turn]!
  if (parent < 0) return { first: turn, at: 0, size: 1 }
  let [from, to, at] = [tree.childStart[parent]!, tree.childStart[parent + 1]!, 0]
  while (tree.group[tree.children[from]!] !== tree.group[turn]) from++
  while (tree.group[tree.children[to - 1]!] !== tree.group[turn]) to--
  while (tree.children[from + at] !== turn) at++
  return { first: tree.children[from]!, at, size: to - from }
}

/** Shows a turn of a strip, and those around it, as boxes. */
export function unfold(tree: Tree, unfolded: Unfolded[], turn: number): Unfolded[] {
  const { first, at, size } = placeInGroup(tree, turn)
  if (size <= MOST_SIBLINGS) return unfolded
  if (unfolded.some(one => one.first === first && one.from <= at && at < one.to)) return unfolded
  const from = Math.floor(at / UNFOLD) * UNFOLD
  return [...unfolded, { first, from, to: Math.min(size, from + UNFOLD) }]
}

/** Folds or unfolds a turn: a cell becomes boxes, a box of a large group goes back into its strip, any other hides or shows its children. */
export function toggle(tree: Tree, folds: Folds, turn: number): Folds {
  const { first, at, size } = placeInGroup(tree, turn)
  if (size > MOST_SIBLINGS) {
    const shown = folds.unfolded.find(one => one.first === first && one.from <= at && at < one.to)
    if (!shown) return { ...folds, unfolded: unfold(tree, folds.unfolded, turn) }
    if (tree.childStart[turn] === tree.childStart[turn + 1])
      return { ...folds, unfolded: folds.unfolded.filter(one => one !== shown) }
  }
  if (tree.childStart[turn] === tree.childStart[turn + 1]) return folds
  const isClosed = folds.closed.includes(turn)
  return { ...folds, closed: isClosed ? folds.closed.filter(one => one !== turn) : [...folds.closed, turn] }
}
