// The page of evaluate_engine for models that find objects: what changes with model and threshold.

if (data.models) {
  const LISTED = 10;
  const { models, kinds, images, thresholds } = data;
  const slider = byId('threshold');
  const select = byId('model');
  const boxes = [...document.querySelectorAll('input.kind')];
  const chosen = () => (select ? Number(select.value) : 0);
  const share = (part, whole) => (whole ? part / whole : null);
  const f1 = (one, other) => (one === null || other === null ? null : one + other ? 2 * one * other / (one + other) : 0);

  function sharesAt(model, t) {
    const at = (kind) => model.counts[kind][t];
    const found = kinds.filter((kind) => kind !== 'missed').reduce((sum, kind) => sum + at(kind), 0);
    const precision = share(at('right'), found);
    const recall = share(at('right'), at('right') + at('wrong class') + at('missed'));
    return { precision, recall, F1: f1(precision, recall) };
  }

  function showCounts(t) {
    for (const cell of document.querySelectorAll('[data-figure]')) {
      const model = models[cell.dataset.model];
      const figure = cell.dataset.figure;
      cell.textContent = kinds.includes(figure) ? model.counts[figure][t] : figureText(sharesAt(model, t)[figure]);
    }
    for (const cell of document.querySelectorAll('[data-total]')) {
      cell.textContent = models[chosen()].counts[cell.dataset.total][t];
    }
    for (const line of document.querySelectorAll('.marker')) {
      const [first, last] = [Number(line.dataset.x0), Number(line.dataset.x1)];
      const x = first + thresholds[t] * (last - first);
      line.setAttribute('x1', x);
      line.setAttribute('x2', x);
    }
  }

  function showBreakdown(t) {
    const model = models[chosen()];
    fillRows(byId('sizes').tBodies[0], model.sizes.map((size) => [
      size.name, size.objects, size.right[t], figureText(share(size.right[t], size.objects)), figureText(size.AP),
    ]));
    fillRows(byId('classes').tBodies[0], model.classes.map((one) => {
      const [right, found] = [one.right[t], one.detections[t]];
      const [precision, recall] = [share(right, found), share(right, one.objects)];
      return [nameOf(model.names[one.index]), one.objects, figureText(one.AP), figureText(one.AP50),
        ...[precision, recall, f1(precision, recall)].map((value) => figureText(value)),
        one.objects - right, found - right];
    }));
  }

  function showMatrix(t) {
    const { names, changes } = models[chosen()].confusions;
    const size = names.length + 1;
    const cells = Array.from({ length: size }, () => Array(size).fill(0));
    for (const [first, row, column, change] of changes) if (first <= t) cells[row][column] += change;
    const table = make('table', make('caption', 'Rows: objects. Columns: detections.'));
    table.append(make('thead'), make('tbody'));
    const heads = make('tr', ...['object', ...names, 'missed'].map((one) => {
      const head = make('th', nameOf(String(one)));
      head.scope = 'col';
      return head;
    }));
    table.tHead.append(heads);
    fillRows(table.tBodies[0], cells.map((row, index) => [
      index < names.length ? nameOf(names[index]) : 'no object', ...row.map((count, column) =>
        (index === size - 1 && column === size - 1 ? '' : count)),
    ]));
    [...table.tBodies[0].rows].forEach((row, index) => {
      const total = Math.max(1, ...cells[index]);
      [...row.cells].slice(1).forEach((cell, column) => {
        const count = cells[index][column];
        cell.className = count === 0 ? 'zero' : index === column ? 'right' : 'wrong';
        // The root makes few confusions visible next to many right detections.
        cell.style.setProperty('--share', Math.sqrt(count / total));
      });
    });
    byId('confusions').replaceChildren(table);
  }

  /* Return the mistakes and right detections of an image at a threshold. */
  function stateOf(image, t) {
    const { objects, detections, wrong_class: wrong } = image.models[chosen()];
    const taken = new Map();
    const state = [];
    const wrongNow = new Map();
    for (const [detection, object, first, end] of wrong) {
      if (first <= t && t < end) wrongNow.set(detection, object);
    }
    detections.forEach(([x, y, w, h, category, path, score, shown, kind, object], index) => {
      if (shown <= t) return;
      const other = wrongNow.has(index) ? wrongNow.get(index) : object;
      if (other >= 0) taken.set(other, index);
      const name = wrongNow.has(index) ? 'wrong class' : kinds[kind];
      state.push({ kind: name, box: [x, y, w, h], path, category, score, object: other });
    });
    objects.forEach(([x, y, w, h, category, path], object) => {
      if (taken.has(object)) return;
      const below = detections.filter((one) => one[9] === object).map((one) => one[6]);
      state.push({ kind: 'missed', box: [x, y, w, h], path, category, object, below: below.length ? Math.max(...below) : null });
    });
    return state;
  }

  function drawState(figure, image, state) {
    const { names } = models[chosen()];
    const shown = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
    const layer = figure.querySelector('svg');
    const unit = Math.max(...image.size) / 30;
    layer.style.fontSize = `${unit}px`; // in pixels of the image
    layer.replaceChildren();
    for (const { kind, box: [x, y, width, height], path, category, score, object } of state) {
      if (!shown.has(kind)) continue;
      const style = kind.replace(' ', '-');
      layer.append(drawn('rect', { x, y, width, height, class: `box ${style}` }));
      if (path) layer.append(drawn('path', { d: path, class: `box ${style}` }));
      if (kind === 'right') continue;
      const truth = kind === 'wrong class' ? `, is ${names[image.models[chosen()].objects[object][4]]}` : '';
      const text = names[category].slice(0, 20) + (score === undefined ? '' : ` ${score.toFixed(2)}`) + truth.slice(0, 24);
      // A label that could leave the picture ends where its box ends.
      const place = x > image.size[0] / 2 ? { x: Math.min(image.size[0], x + width), 'text-anchor': 'end' } : { x: Math.max(0, x) };
      const label = drawn('text', { ...place, y: y < unit ? y + height + unit : y - unit / 4, class: style });
      label.textContent = text;
      layer.append(label);
    }
    const wrong = state.filter((one) => one.kind !== 'right');
    const counts = kinds.filter((kind) => kind !== 'right').map((kind) => [kind, wrong.filter((one) => one.kind === kind).length]);
    const told = counts.filter(([, count]) => count).map(([kind, count]) => `${count} ${kind}`);
    figure.querySelector('.mistakes').textContent = told.join(', ') || 'no mistake';
    figure.dataset.mistakes = wrong.length;
  }

  const area = ({ box: [, , width, height] }) => width * height;
  const ORDERS = {
    mistakes: ({ state }) => -state.filter((one) => one.kind !== 'right').length,
    score: ({ state }) => -Math.max(0, ...state.filter((one) => one.kind !== 'right' && one.kind !== 'missed').map((one) => one.score)),
    area: ({ state }) => -Math.max(0, ...state.filter((one) => one.kind === 'missed').map(area)),
    name: ({ image }) => image.name,
  };

  function showGallery(t) {
    const rows = [...document.querySelectorAll('[data-image]')].map((figure) => {
      const image = images[figure.dataset.image];
      return { figure, image, state: stateOf(image, t) };
    });
    for (const { figure, image, state } of rows) drawState(figure, image, state);
    const key = ORDERS[byId('order').value];
    const keys = new Map(rows.map((row) => [row, key(row)]));
    const compare = (one, other) => (one < other ? -1 : one > other ? 1 : 0);
    rows.sort((one, other) => compare(keys.get(one), keys.get(other)) || compare(one.image.name, other.image.name));
    byId('gallery').append(...rows.map((row) => row.figure));
    showWorst(rows);
  }

  /* Return the part of a picture around a box. */
  function cropOf({ figure, image, box: [x, y, width, height], kind }) {
    const [all, high] = image.size;
    const side = 2 * Math.max(width, height, 1);
    const crop = drawn('svg', { viewBox: `${x + width / 2 - side / 2} ${y + height / 2 - side / 2} ${side} ${side}`, class: 'crop' });
    crop.append(drawn('image', { href: figure.querySelector('img').src, width: all, height: high, preserveAspectRatio: 'none' }));
    crop.append(drawn('rect', { x, y, width, height, class: `box ${kind.replace(' ', '-')}` }));
    return crop;
  }

  function showWorst(rows) {
    const { names } = models[chosen()];
    const all = rows.flatMap(({ figure, image, state }) => state.map((one) => ({ ...one, image, figure })));
    const linked = (figure, content) => {
      const made = make('a', content);
      made.href = `#${figure.id}`;
      return made;
    };
    const link = ({ figure, image }) => linked(figure, nameOf(image.name));
    // The part is a second link for a pointer only: the name is out of sight in a narrow window.
    const part = (one) => {
      const made = linked(one.figure, cropOf(one));
      made.tabIndex = -1;
      made.ariaHidden = 'true';
      return made;
    };
    const wrong = all.filter((one) => one.kind !== 'right' && one.kind !== 'missed');
    wrong.sort((one, other) => other.score - one.score);
    fillRows(byId('worst-detections').tBodies[0], wrong.slice(0, LISTED).map((one) => [
      figureText(one.score), part(one), one.kind, nameOf(names[one.category]),
      one.kind === 'wrong class' ? nameOf(names[one.image.models[chosen()].objects[one.object][4]]) : '–', link(one),
    ]));
    const missed = all.filter((one) => one.kind === 'missed').sort((one, other) => area(other) - area(one));
    fillRows(byId('worst-missed').tBodies[0], missed.slice(0, LISTED).map((one) => [
      `${Math.round(one.box[2])} × ${Math.round(one.box[3])}`, part(one), nameOf(names[one.category]), figureText(one.below), link(one),
    ]));
  }

  function showAll() {
    const t = Number(slider.value);
    byId('threshold-text').textContent = thresholds[t].toFixed(2);
    showCounts(t);
    showBreakdown(t);
    showMatrix(t);
    showGallery(t);
  }

  slider.addEventListener('input', showAll);
  byId('node-threshold').addEventListener('click', () => {
    slider.value = slider.dataset.node;
    showAll();
  });
  for (const input of [select, byId('order'), ...boxes]) if (input) input.addEventListener('change', showAll);
  byId('gallery').addEventListener('click', (event) => {
    const button = event.target.closest('button.picture');
    if (button) button.parentElement.classList.toggle('large');
  });
  showAll();
}
